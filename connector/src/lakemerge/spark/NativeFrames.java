package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.file.Files;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation$;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/** Frames for Python's {@code to_df}, which has planned the read by itself. Python makes an object of this class. */
public final class NativeFrames {
  /** Why a session does not read a table with these columns natively; {@code null} if it does. */
  public String refusal(SparkSession session, String schema) {
    return NativeReads.refusal(session.sessionState().conf(), (StructType) DataType.fromJson(schema)).orElse(null);
  }

  /**
   * @param plan a plan in JSON, with the name of the table and its schema
   * @param streams a file with the merged rows of the plan; {@code null} where there are none
   * @param hadoop options of Hadoop's file systems. They are no part of the plan, because some may be secret
   */
  public Dataset<Row> read(SparkSession session, byte[] plan, String streams, Map<String, String> hadoop)
      throws IOException {
    JsonNode told = Channel.parsed(plan);
    byte[] merged = streams == null ? new byte[0] : Files.readAllBytes(java.nio.file.Path.of(streams));
    Table table = new PlannedTable(session, told, new ReadPlan(told, merged, hadoop));
    return Dataset$.MODULE$.ofRows(
        session,
        DataSourceV2Relation$.MODULE$.create(table, Option.apply(new BucketFunction.Only()), Option.empty()));
  }

  /** A version of a table whose read is planned. */
  private static final class PlannedTable implements SupportsRead, NativeScanBuilder.Source {
    private final SparkSession session;
    private final String name;
    private final StructType schema;
    private final String identity;
    private final ReadPlan plan;

    PlannedTable(SparkSession session, JsonNode told, ReadPlan plan) {
      this.session = session;
      name = told.path("name").asText();
      schema = (StructType) DataType.fromJson(told.path("schema").asText());
      identity = told.path("identity").asText();
      this.plan = plan;
    }

    @Override
    public String name() {
      return name;
    }

    @Override
    public StructType schema() {
      return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new NativeScanBuilder(this, session);
    }

    @Override
    public ReadPlan plan(List<String> conditions) {
      return plan;
    }

    @Override
    public PythonSource kernel(ReadPlan plan, String columns, List<String> conditions) {
      Map<String, String> options = new HashMap<>(plan.kernel);
      PythonSource.select(options, columns, conditions);
      return new PythonSource("lakemerge", options);
    }

    @Override
    public boolean givesWholeColumns() {
      return !plan.merged.isEmpty();
    }

    @Override
    public Object identity() {
      return identity;
    }

    @Override
    public Scan otherwise(StructType columns, Filter[] filters) {
      throw new IllegalStateException("a frame was planned that cannot be read natively");
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof PlannedTable table && table.identity.equals(identity);
    }

    @Override
    public int hashCode() {
      return identity.hashCode();
    }
  }
}
