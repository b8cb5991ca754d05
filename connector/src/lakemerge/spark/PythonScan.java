package lakemerge.spark;

import java.util.List;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.StructType;

/** A scan of one version of a table. Two scans of the same rows are equal, so that Spark may run one for both. */
final class PythonScan implements Scan {
  private final LakeMergeTable table;
  private final StructType columns;
  private final List<String> conditions;
  private final Scan python;

  PythonScan(LakeMergeTable table, StructType columns, List<String> conditions, Scan python) {
    this.table = table;
    this.columns = columns;
    this.conditions = conditions;
    this.python = python;
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  @Override
  public String description() {
    String where = conditions.isEmpty() ? "" : ", where " + String.join(" AND ", conditions);
    return table.name() + ", version " + table.version + where;
  }

  @Override
  public Batch toBatch() {
    return python.toBatch();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return python.supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return python.reportDriverMetrics();
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof PythonScan scan
        && scan.table.equals(table)
        && scan.columns.equals(columns)
        && scan.conditions.equals(conditions);
  }

  @Override
  public int hashCode() {
    return table.hashCode() * 31 + conditions.hashCode();
  }
}
