package lakemerge.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Which versions of a table the statement that runs on this thread has read.
 *
 * <p>Spark tells a write nothing of the scans beside it. So scans are noted per thread, and are forgotten when a table is
 * loaded for the next write. Up to Spark 4.1 some writes come without such a load: then only scans of tables that were
 * loaded after the target count.
 */
final class ReadVersions {
  private static final AtomicLong LOADED = new AtomicLong();
  private static final ThreadLocal<Map<String, List<Scan>>> SCANS = ThreadLocal.withInitial(HashMap::new);

  private ReadVersions() {}

  private record Scan(long loaded, long version) {}

  /** A number that is higher for each table that is loaded. */
  static long nextLoad() {
    return LOADED.incrementAndGet();
  }

  /** A statement that writes begins. */
  static void forget() {
    SCANS.get().clear();
  }

  static void note(LakeMergeTable table) {
    SCANS.get().computeIfAbsent(table.id(), id -> new ArrayList<>()).add(new Scan(table.loaded, table.version));
  }

  /** The lowest version of the table that was read for this write; nothing if it reads nothing of it. */
  static Optional<Long> taken(LakeMergeTable target) {
    List<Scan> scans = SCANS.get().remove(target.id());
    return scans == null
        ? Optional.empty()
        : scans.stream()
            .filter(scan -> target.isForWriting() || scan.loaded >= target.loaded)
            .map(Scan::version)
            .min(Long::compare);
  }
}
