package lakemerge.spark;

import java.util.ArrayDeque;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Which versions of a table the statement that runs on this thread has read.
 *
 * <p>Spark tells a write nothing of the scans beside it. So scans are noted per thread, and are forgotten when a table
 * is loaded for the next write. Up to Spark 4.1 some writes come without such a load: then only scans of tables that
 * were loaded after the target count.
 */
final class ReadVersions {
  /** Threads of servers live for long and may only read. */
  private static final int KEPT = 1000;

  private static final AtomicLong LOADED = new AtomicLong();
  private static final ThreadLocal<ArrayDeque<Scan>> SCANS = ThreadLocal.withInitial(ArrayDeque::new);

  private ReadVersions() {}

  private record Scan(String table, long loaded, long version) {}

  /** A number that is higher for each table that is loaded. */
  static long nextLoad() {
    return LOADED.incrementAndGet();
  }

  /** A statement that writes begins. */
  static void forget() {
    SCANS.get().clear();
  }

  static void note(LakeMergeTable table) {
    ArrayDeque<Scan> scans = SCANS.get();
    if (scans.size() == KEPT) {
      scans.removeFirst();
    }
    scans.addLast(new Scan(table.id(), table.loaded, table.version));
  }

  /** The lowest version of the table that was read for this write; nothing if it reads nothing of it. */
  static Optional<Long> taken(LakeMergeTable target) {
    return SCANS.get().stream()
        .filter(scan -> scan.table.equals(target.id()))
        .filter(scan -> target.isForWriting() || scan.loaded >= target.loaded)
        .map(Scan::version)
        .min(Long::compare);
  }
}
