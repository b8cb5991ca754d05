package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One version of a table as {@code format("lakemerge")} reads it. Python chose the version when the table was loaded.
 * The rows are read by the native scan, and written by Python.
 */
public final class FormatTable implements SupportsRead, SupportsWrite, NativeScanBuilder.Source {
  private static final String SOURCE = "lakemerge";
  /** Options that begin so are our own. They say what Python is asked for. */
  private static final String OWN = "lakemerge.";
  /** An entry in the metadata of the first column that Python answers: which version the schema is of. */
  private static final String NAMED = "lakemerge.named";
  private static final Set<String> OF_READS = Set.of("mode", "failedkeys");
  /** What the version and the columns that are known stand for. */
  private static final Set<String> SETTLED =
      Set.of("version", "versionasof", "timestamp", "timestampasof", "columns", "lakemerge.tableid", "lakemerge.jar");

  private final Table python;
  private final StructType schema;
  private final Map<String, String> options;
  private final String id;
  private final long version;
  private final Set<String> storage = new HashSet<>();

  /**
   * @param python the table as Python reads and writes it
   * @param options the user's
   */
  private FormatTable(Table python, StructType schema, Map<String, String> options, JsonNode named) {
    this.python = python;
    this.schema = schema;
    this.options = options;
    id = named.path("tableId").asText();
    version = named.path("version").asLong();
    named.path("storage").forEach(name -> storage.add(name.asText().toLowerCase()));
  }

  /** The options with which Python is asked for the schema. Its answer names the version if the scan can be used. */
  public static CaseInsensitiveStringMap asking(CaseInsensitiveStringMap options) {
    boolean isRequest = options.keySet().stream().anyMatch(name -> name.startsWith(OWN));
    if (isRequest || NativeReads.refusal(SQLConf.get(), new StructType()).isPresent()) {
      return options;
    }
    Map<String, String> more = new HashMap<>(options.asCaseSensitiveMap());
    more.put("lakemerge.jar", Channel.VERSION);
    return new CaseInsensitiveStringMap(more);
  }

  /** What a schema of Python's answer says of its version; {@code null} if nothing. */
  public static String named(StructType answered) {
    Metadata first = answered.isEmpty() ? Metadata.empty() : answered.apply(0).metadata();
    return first.contains(NAMED) ? first.getString(NAMED) : null;
  }

  /** The columns that Python answered. */
  public static StructType columns(StructType answered) {
    StructType found = new StructType();
    for (StructField field : answered.fields()) {
      Metadata metadata = new MetadataBuilder().withMetadata(field.metadata()).remove(NAMED).build();
      found = found.add(field.name(), field.dataType(), field.nullable(), metadata);
    }
    return found;
  }

  /** The table for a read; the one of Python if the scan does not know all columns. */
  public static Table of(Table python, StructType schema, Map<String, String> options, String named) {
    return NativeReads.refusal(SQLConf.get(), schema).isPresent()
        ? python
        : new FormatTable(python, schema, options, Channel.parsed(named));
  }

  @Override
  public String name() {
    return python.name() + ", version " + version;
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return python.capabilities();
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    if (NativeReads.refusal(SQLConf.get(), schema).isPresent()) {  // the session may have been told so since the load
      return () -> otherwise(schema, new Filter[0]);
    }
    SparkSession session = SparkSession$.MODULE$.active();
    Sparks.sendJar(session);
    return new NativeScanBuilder(this, session);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return ((SupportsWrite) python).newWriteBuilder(info);
  }

  @Override
  public ReadPlan plan(List<String> conditions) {
    ObjectNode request = ReadPlan.request(path(), id, version, conditions);
    ObjectNode ofRead = request.putObject("options");
    Map<String, String> ofStore = new HashMap<>();
    options.forEach((name, value) -> {
      if (storage.contains(name.toLowerCase())) {
        ofStore.put(name, value);
      } else if (OF_READS.contains(name.toLowerCase())) {
        ofRead.put(name, value);
      }
    });
    return new ReadPlan(new Channel(ofStore, SOURCE, "lakemerge.request").ask(request, null));
  }

  private String path() {
    return new CaseInsensitiveStringMap(options).get("path");
  }

  @Override
  public PythonSource kernel(ReadPlan plan, String columns, List<String> conditions) {
    Map<String, String> own = of(columns, conditions);
    own.putAll(plan.kernel);
    return new PythonSource(SOURCE, own);
  }

  private Map<String, String> of(String columns, List<String> conditions) {
    Map<String, String> own = new HashMap<>(options);
    own.keySet().removeIf(name -> SETTLED.contains(name.toLowerCase()));
    own.put("version", Long.toString(version));
    own.put("lakemerge.tableId", id);
    PythonSource.select(own, columns, conditions);
    return own;
  }

  @Override
  public Object identity() {
    return this;
  }

  @Override
  public Scan otherwise(StructType columns, Filter[] filters) {
    StructType asked = columns.isEmpty() ? new StructType().add(schema.apply(0)) : columns;
    return new PythonSource(SOURCE, of(NativeReads.names(asked, column -> column), List.of())).scan(asked);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof FormatTable table
        && table.id.equals(id)
        && table.version == version
        && table.schema.equals(schema)
        && table.options.equals(options);
  }

  @Override
  public int hashCode() {
    return id.hashCode() * 31 + Long.hashCode(version);
  }
}
