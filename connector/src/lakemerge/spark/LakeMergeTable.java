package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One version of a table. The version is chosen when the table is loaded and never again, so that all parts of a
 * command see the same rows, and a command that writes is judged by what it read.
 */
class LakeMergeTable implements SupportsRead, SupportsWrite, SupportsRowLevelOperations, SupportsMetadataColumns {
  /** An option of a read: which table it must be. */
  private static final String EXPECTED = "tableId";

  final long version;
  /** Higher than that of each table that was loaded before. */
  final long loaded = ReadVersions.nextLoad();

  private final String name;
  private final String path;
  private final String id;
  private final StructType schema;
  private final List<String> partitioning = new ArrayList<>();
  private final Map<String, String> properties;
  private final Map<String, String> storage;
  private final Channel channel;
  private final String isolation;
  private final boolean forWriting;
  private final List<String> key = new ArrayList<>();
  private final List<String> remembered = new ArrayList<>();

  /**
   * @param definition what Python answers to a load
   * @param forWriting whether the table is the target of a command
   */
  LakeMergeTable(
      String name,
      JsonNode definition,
      Map<String, String> storage,
      Channel channel,
      String isolation,
      boolean forWriting) {
    this.name = name;
    this.storage = storage;
    this.channel = channel;
    this.isolation = isolation;
    this.forWriting = forWriting;
    definition.path("key").forEach(column -> key.add(column.asText()));
    definition.path("remembered").forEach(column -> remembered.add(column.asText()));
    path = definition.path("path").asText();
    id = definition.path("id").asText();
    version = definition.path("version").asLong();
    schema = (StructType) DataType.fromJson(definition.path("schema").asText());
    definition.path("partitioning").forEach(column -> partitioning.add(column.asText()));
    properties = LakeMergeCatalog.texts(definition.path("properties"));
  }

  @Override
  public String name() {
    return name;
  }

  /** Delta's id of the table. Spark 4.1 and later ask for it. */
  public String id() {
    return id;
  }

  /**
   * The version, by which Spark 4.1 and later tell whether a relation has to be loaded again. A table that is loaded
   * for writing has none: Spark does not load the target of a command again, so what the command reads must stay, too.
   */
  public String version() {
    return forWriting ? null : Long.toString(version);
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public Transform[] partitioning() {
    return partitioning.stream().map(Expressions::identity).toArray(Transform[]::new);
  }

  @Override
  public Map<String, String> properties() {
    return properties;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(
        TableCapability.BATCH_READ,
        TableCapability.MICRO_BATCH_READ,
        TableCapability.BATCH_WRITE,
        TableCapability.STREAMING_WRITE,
        TableCapability.TRUNCATE,
        TableCapability.OVERWRITE_BY_FILTER,
        TableCapability.OVERWRITE_DYNAMIC);
  }

  boolean isForWriting() {
    return forWriting;
  }

  List<String> key() {
    return key;
  }

  /** The columns that a deleted row's tombstone has besides its key. */
  List<String> remembered() {
    return remembered;
  }

  /** With which commits a transaction conflicts. */
  String isolation() {
    return isolation;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    ReadVersions.note(this);
    Map<String, String> others = new HashMap<>(options.asCaseSensitiveMap());
    others.keySet().removeIf(EXPECTED::equalsIgnoreCase);
    if (!options.getOrDefault(EXPECTED, id).equals(id)) {
      throw Errors.refusal("table-replaced", "the table at " + path + " is another than the one that was opened");
    }
    return scan(new CaseInsensitiveStringMap(others));
  }

  /** A scan of the version. */
  ScanBuilder scan(CaseInsensitiveStringMap options) {
    return scan(options, false);
  }

  /** @param isOfCommand whether it reads the rows that an UPDATE, DELETE or MERGE may change */
  ScanBuilder scan(CaseInsensitiveStringMap options, boolean isOfCommand) {
    if (NativeReads.refusal(SQLConf.get(), schema).isPresent()) {
      return new PythonScanBuilder(this, options);
    }
    return new NativeScanBuilder(new Source(options, isOfCommand), SparkSession$.MODULE$.active());
  }

  /** The table's column that a query names. */
  String stored(String column) {
    String name = column.startsWith(MetadataColumns.PREFIX) ? column.substring(MetadataColumns.PREFIX.length()) : column;
    return remembered.contains(name) ? name : column;
  }

  /** The version for a native scan, which Python plans. */
  private final class Source implements NativeScanBuilder.Source {
    private final CaseInsensitiveStringMap given;
    private final boolean isOfCommand;

    Source(CaseInsensitiveStringMap given, boolean isOfCommand) {
      this.given = given;
      this.isOfCommand = isOfCommand;
    }

    @Override
    public boolean isOfCommand() {
      return isOfCommand;
    }

    @Override
    public String name() {
      return name + ", version " + version;
    }

    @Override
    public StructType schema() {
      return schema;
    }

    @Override
    public String stored(String column) {
      return LakeMergeTable.this.stored(column);
    }

    @Override
    public ReadPlan plan(List<String> conditions) {
      options(given, Map.of());  // says which are wrong
      ObjectNode request = ReadPlan.request(path, id, version, conditions);
      given.asCaseSensitiveMap().forEach(request.putObject("options")::put);
      return new ReadPlan(channel.ask(request, null));
    }

    @Override
    public PythonSource kernel(ReadPlan plan, String columns, List<String> conditions) {
      Map<String, String> own = new HashMap<>(pins());
      own.putAll(plan.kernel);
      PythonSource.select(own, columns, conditions);
      return source(given, own);
    }

    @Override
    public Object identity() {
      return List.of(LakeMergeTable.this, given.asCaseSensitiveMap());
    }

    @Override
    public Scan otherwise(StructType columns, Filter[] filters) {
      PythonScanBuilder builder = new PythonScanBuilder(LakeMergeTable.this, given);
      builder.pushPredicates(Arrays.stream(filters).map(Filter::toV2).toArray(Predicate[]::new));
      builder.pruneColumns(columns);
      return builder.build();
    }
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    Sparks.checkWrites("INSERT");
    return new InsertBuilder(this, info, ReadVersions.taken(this));
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    Sparks.checkWrites(info.command().toString());
    return () -> new RowLevelCommand(this, info.command());
  }

  /** Asks Python for something about this table. */
  void ask(String operation, Consumer<ObjectNode> more) {
    ObjectNode request = about(operation);
    PythonSource.transaction().ifPresent(txn -> request.set("txn", txn));
    more.accept(request);
    channel.ask(request, null);
  }

  private ObjectNode about(String operation) {
    return Channel.request(operation).put("path", path).put("tableId", id);
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    return MetadataColumns.of(remembered, schema);
  }

  /** The table as a Python data source. */
  PythonSource source(CaseInsensitiveStringMap given, Map<String, String> own) {
    return new PythonSource("lakemerge", options(given, own));
  }

  /**
   * Options of the Python data source.
   *
   * @param given the user's
   * @param own those that only we set
   */
  Map<String, String> options(CaseInsensitiveStringMap given, Map<String, String> own) {
    Map<String, String> options = new HashMap<>(storage);
    options.putAll(checked(given.asCaseSensitiveMap()));
    options.putAll(own);
    options.put("path", path);
    return options;
  }

  /** A user's options, which say neither where a table is nor which version is meant. */
  static Map<String, String> checked(Map<String, String> given) {
    Map<String, String> options = new HashMap<>();
    given.forEach((key, value) -> {
      String lower = key.toLowerCase();
      if (List.of("path", "version", "versionasof", "timestamp", "timestampasof").contains(lower)) {
        throw Errors.refusal(
            "input", "option " + key + ": the name says which table is meant, and VERSION AS OF which version");
      }
      if (lower.startsWith("lakemerge.")) {
        throw Errors.refusal("input", "option " + key + ": options that begin with lakemerge. are the library's own");
      }
      options.put(key, value);
    });
    return options;
  }

  /** Options of a scan: the version, and which table it must be. */
  Map<String, String> pins() {
    return Map.of("version", Long.toString(version), "lakemerge.tableId", id);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof LakeMergeTable table
        && table.id.equals(id)
        && table.version == version
        && table.path.equals(path);
  }

  @Override
  public int hashCode() {
    return id.hashCode() * 31 + Long.hashCode(version);
  }
}
