package lakemerge.spark;

import java.util.List;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/**
 * A scan of one version of a table, or a stream that begins with the newest one. Two scans of the same rows are equal,
 * so that Spark may run one for both.
 */
final class PythonScan implements Scan {
  private final LakeMergeTable table;
  private final StructType columns;
  private final List<String> conditions;
  private final Supplier<Scan> planned;
  private final Supplier<Scan> stream;
  private Scan python;

  /**
   * @param planned asks Python for the scan of the version
   * @param stream asks Python for a stream, which has all columns and no conditions
   */
  PythonScan(
      LakeMergeTable table,
      StructType columns,
      List<String> conditions,
      Supplier<Scan> planned,
      Supplier<Scan> stream) {
    this.table = table;
    this.columns = columns;
    this.conditions = conditions;
    this.planned = planned;
    this.stream = stream;
  }

  private Scan python() {
    if (python == null) {
      python = planned.get();
    }
    return python;
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
    return python().toBatch();
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    // Spark asks this scan for its metrics afterwards, and a scan of a version takes no options of a stream.
    python = stream.get();
    return python.toMicroBatchStream(checkpoint);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return python().supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return python().reportDriverMetrics();
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
