package lakemerge.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A scan that Python plans and runs. Columns that are not needed are not read. Filters leave out files and rows;
 * Spark judges all rows again, so a filter that is not pushed down costs time and nothing else.
 */
final class PythonScanBuilder implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownV2Filters {
  private final LakeMergeTable table;
  private final CaseInsensitiveStringMap options;
  private StructType columns;
  private final List<Predicate> pushed = new ArrayList<>();
  private final List<String> conditions = new ArrayList<>();

  PythonScanBuilder(LakeMergeTable table, CaseInsensitiveStringMap options) {
    this.table = table;
    this.options = options;
    columns = table.schema();
  }

  @Override
  public void pruneColumns(StructType required) {
    // Python needs a column to count rows by.
    columns = required.isEmpty() ? new StructType().add(table.schema().apply(0)) : required;
  }

  @Override
  public Predicate[] pushPredicates(Predicate[] predicates) {
    for (Predicate predicate : predicates) {
      if (!Filters.isOf(table.schema(), predicate)) {
        continue;
      }
      Filters.text(predicate).ifPresent(text -> {
        pushed.add(predicate);
        conditions.add(text);
      });
    }
    return predicates;
  }

  @Override
  public Predicate[] pushedPredicates() {
    return pushed.toArray(new Predicate[0]);
  }

  @Override
  public Scan build() {
    return new PythonScan(table, columns, conditions, this::ofVersion, this::stream);
  }

  private Scan ofVersion() {
    Map<String, String> own = new HashMap<>(table.pins());
    PythonSource.select(own, NativeReads.names(columns, table::stored), conditions);
    return table.source(options, own).scan(columns);
  }

  /** Spark prunes and filters no streams. */
  private Scan stream() {
    Map<String, String> own = Map.of("lakemerge.rows", "true", "lakemerge.tableId", table.id());
    return table.source(options, own).scan(table.schema());
  }
}
