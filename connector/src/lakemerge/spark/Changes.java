package lakemerge.spark;

import java.time.Instant;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code SELECT * FROM lake.db.orders CHANGES FROM VERSION 3}, {@code spark.read.changes} and
 * {@code spark.readStream.changes}. Spark has nothing to add to what the feed of the table gives: each update is two
 * rows, no row is there that did not change, and net changes are the feed's own.
 */
final class Changes implements Changelog {
  private final ChangesTable table;
  private final Map<String, String> range = new HashMap<>();

  private Changes(ChangesTable table, ChangelogContext context) {
    this.table = table;
    if (context.range() instanceof ChangelogRange.VersionRange versions) {
      long first = number(versions.startingVersion());
      range.put("startingVersion", Long.toString(versions.startingBoundInclusive() ? first : first + 1));
      versions.endingVersion().ifPresent(text -> {
        long last = number(text);
        range.put("endingVersion", Long.toString(versions.endingBoundInclusive() ? last : last - 1));
      });
    } else if (context.range() instanceof ChangelogRange.TimestampRange times) {
      // Commits have times of whole milliseconds.
      long first = times.startingTimestamp();
      range.put("startingTimestamp", text(times.startingBoundInclusive() ? up(first) : Math.floorDiv(first, 1000L) + 1));
      times.endingTimestamp().ifPresent(last ->
          range.put("endingTimestamp", text(times.endingBoundInclusive() ? Math.floorDiv(last, 1000L) : up(last) - 1)));
    }
    if (context.deduplicationMode() == ChangelogContext.DeduplicationMode.NET_CHANGES) {
      range.put("deduplicationMode", "netChanges");
    }
  }

  /** A method of another class may not name this one: Spark before 4.2 lacks what it implements. */
  static Changelog of(ChangesTable table, ChangelogContext context) {
    return new Changes(table, context);
  }

  @Override
  public String name() {
    return table.name();
  }

  @Override
  public Column[] columns() {
    return Arrays.stream(table.schema().fields()).map(Changes::column).toArray(Column[]::new);
  }

  @Override
  public boolean containsCarryoverRows() {
    return false;
  }

  @Override
  public boolean containsIntermediateChanges() {
    return false;
  }

  @Override
  public boolean representsUpdateAsDeleteAndInsert() {
    return false;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    Map<String, String> all = new HashMap<>();
    options.asCaseSensitiveMap().forEach((key, value) -> {
      // Spark reads its own options, and gives them again.
      boolean isSparks = key.toLowerCase().matches("(starting|ending)(version|timestamp|boundinclusive)"
          + "|deduplicationmode|computeupdates");
      if (!isSparks) {
        all.put(key, value);
      }
    });
    all.putAll(range);
    return table.newScanBuilder(all);
  }

  private static Column column(StructField field) {
    return Column.create(field.name(), field.dataType(), field.nullable());
  }

  private static long number(String version) {
    try {
      return Long.parseLong(version);
    } catch (NumberFormatException error) {
      throw Errors.refusal("input", "CHANGES FROM VERSION " + version + ": a version is a number");
    }
  }

  /** Milliseconds, rounded up. */
  private static long up(long microseconds) {
    return -Math.floorDiv(-microseconds, 1000L);
  }

  private static String text(long milliseconds) {
    return Instant.ofEpochMilli(milliseconds).toString();
  }
}
