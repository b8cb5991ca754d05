package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog of LakeMerge tables. Its namespaces are the folders of a warehouse, and a table is a folder in one of them.
 * A catalog without a warehouse has paths as the names of its tables.
 *
 * <pre>
 * spark.sql.catalog.lake            lakemerge.spark.LakeMergeCatalog
 * spark.sql.catalog.lake.warehouse  s3://bucket/lake
 * spark.sql.catalog.lake.storage.*  storage options
 * </pre>
 *
 * Everything is decided by LakeMerge's Python; see {@link Channel}.
 */
public final class LakeMergeCatalog
    implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog, FunctionCatalog {
  private static final String STORAGE = "storage.";
  private static final String[] DEFAULT_NAMESPACE = {"default"};

  private String name;
  private String warehouse;
  private String allowedPaths;
  private String isolation;
  private Map<String, String> storage;
  private Channel channel;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    Sparks.check();
    this.name = name;
    warehouse = options.get("warehouse");
    allowedPaths = options.get("allowedPaths");
    isolation = options.getOrDefault("isolation", "snapshot");
    if (!isolation.equals("snapshot") && !isolation.equals("serializable")) {
      throw Errors.refusal("input", "the catalog's isolation is snapshot or serializable, not " + isolation);
    }
    storage = new HashMap<>();
    options.asCaseSensitiveMap().forEach((key, value) -> {
      if (key.startsWith(STORAGE)) {
        storage.put(key.substring(STORAGE.length()), value);
      }
    });
    channel = new Channel(storage);
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String[] defaultNamespace() {
    return warehouse == null ? new String[0] : DEFAULT_NAMESPACE;
  }

  // Functions

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    Identifier bucket = Identifier.of(new String[0], BucketFunction.NAME);
    return namespace.length == 0 ? new Identifier[] {bucket} : new Identifier[0];
  }

  @Override
  public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
    return BucketFunction.load(identifier);
  }

  // Namespaces

  @Override
  public String[][] listNamespaces() {
    List<String[]> found = new ArrayList<>();
    channel.ask(inWarehouse("namespaces"), null).path("names").forEach(each -> found.add(new String[] {each.asText()}));
    return found.toArray(new String[0][]);
  }

  @Override
  public String[][] listNamespaces(String[] namespace) {
    if (namespace.length == 0) {
      return listNamespaces();
    }
    loadNamespaceMetadata(namespace);
    return new String[0][];
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) {
    JsonNode answer = channel.ask(inWarehouse("namespace", namespace), Identifier.of(namespace, ""));
    return texts(answer.path("properties"));
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    ObjectNode request = inWarehouse("create namespace", namespace);
    metadata.forEach(request.putObject("properties")::put);
    channel.ask(request, Identifier.of(namespace, ""));
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw Errors.refusal("unsupported", "a namespace is a folder and has no properties");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    ObjectNode request = inWarehouse("drop namespace", namespace).put("cascade", cascade);
    return channel.ask(request, Identifier.of(namespace, "")).path("dropped").asBoolean();
  }

  // Tables

  /** Spark passes the constraints of a new table to a catalog that says so. It can from 4.1 on. */
  @Override
  public Set<TableCatalogCapability> capabilities() {
    return Arrays.stream(TableCatalogCapability.values())
        .filter(capability -> capability.name().equals("SUPPORT_TABLE_CONSTRAINT"))
        .collect(Collectors.toSet());
  }

  @Override
  public Identifier[] listTables(String[] namespace) {
    List<Identifier> found = new ArrayList<>();
    JsonNode answer = channel.ask(inWarehouse("tables", namespace), Identifier.of(namespace, ""));
    answer.path("names").forEach(each -> found.add(Identifier.of(namespace, each.asText())));
    return found.toArray(new Identifier[0]);
  }

  @Override
  public Table loadTable(Identifier table) {
    return load(table, about("load", table), false);
  }

  @Override
  public Table loadTable(Identifier table, Set<TableWritePrivilege> privileges) {
    ReadVersions.forget();
    return load(table, about("load", table), true);
  }

  @Override
  public Table loadTable(Identifier table, String version) {
    return load(table, about("load", table).put("version", version), false);
  }

  @Override
  public Table loadTable(Identifier table, long microseconds) {
    return load(table, about("load", table).put("microseconds", microseconds), false);
  }

  /** For {@code CHANGES FROM VERSION}. Spark asks for it from 4.2 on, and its classes are not in earlier versions. */
  public Changelog loadChangelog(Identifier table, ChangelogContext context, CaseInsensitiveStringMap options) {
    JsonNode definition = channel.ask(about("load", table).put("changes", true), table);
    return Changes.of(new ChangesTable(fullName(table), definition, storage), context);
  }

  private Table load(Identifier table, ObjectNode request, boolean forWriting) {
    JsonNode answer = channel.ask(request, table);
    if (answer.has("changes")) {
      return new ChangesTable(fullName(table), answer, storage);
    }
    if (answer.has("rows")) {
      return new MetadataTable(fullName(table), answer, storage);
    }
    return forWriting
        ? new LakeMergeTable(fullName(table), answer, storage, channel, isolation, true)
        : new WholeTable(fullName(table), answer, storage, channel, isolation);
  }

  @Override
  public Table createTable(Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    channel.ask(definition("create", table, structOf(columns), partitions, properties), table);
    return loadTable(table);
  }

  /** As above, with constraints. Spark calls it from 4.1 on, and its classes are not in earlier versions. */
  public Table createTable(Identifier table, TableInfo info) {
    ObjectNode request =
        definition("create", table, structOf(info.columns()), info.partitions(), info.properties());
    Constraints.define(info.constraints(), request);
    channel.ask(request, table);
    return loadTable(table);
  }

  @Override
  public Table alterTable(Identifier table, TableChange... changes) {
    ObjectNode request = about("alter", table);
    ArrayNode listed = request.putArray("changes");
    for (TableChange change : changes) {
      TableChanges.describe(change, listed.addObject());
    }
    channel.ask(request, table);
    return loadTable(table);
  }

  @Override
  public boolean dropTable(Identifier table) {
    return channel.ask(about("drop", table), table).path("dropped").asBoolean();
  }

  @Override
  public boolean purgeTable(Identifier table) {
    return dropTable(table);
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    String[] namespace = to.namespace();
    if (namespace.length == 0) {
      namespace = from.namespace();
    } else if (namespace.length == 2 && namespace[0].equals(name)) {
      // Spark takes the new name as it is written.
      namespace = new String[] {namespace[1]};
    }
    ObjectNode request = about("rename", from).put("to", to.name());
    request.set("toNamespace", Channel.JSON.valueToTree(namespace));
    channel.ask(request, Identifier.of(namespace, to.name()));
  }

  // Replacing tables

  @Override
  public StagedTable stageCreate(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    return staged("create", table, columns, partitions, properties, request -> {});
  }

  @Override
  public StagedTable stageReplace(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    return staged("replace", table, columns, partitions, properties, request -> {});
  }

  @Override
  public StagedTable stageCreateOrReplace(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
    return staged("create or replace", table, columns, partitions, properties, request -> {});
  }

  /** As above, with constraints. Spark calls it and the next two from 4.1 on. */
  public StagedTable stageCreate(Identifier table, TableInfo info) {
    return staged("create", table, info);
  }

  public StagedTable stageReplace(Identifier table, TableInfo info) {
    return staged("replace", table, info);
  }

  public StagedTable stageCreateOrReplace(Identifier table, TableInfo info) {
    return staged("create or replace", table, info);
  }

  private StagedTable staged(String operation, Identifier table, TableInfo info) {
    return staged(operation, table, info.columns(), info.partitions(), info.properties(), request ->
        Constraints.define(info.constraints(), request));
  }

  private StagedTable staged(
      String operation,
      Identifier table,
      Column[] columns,
      Transform[] partitions,
      Map<String, String> properties,
      Consumer<ObjectNode> constraints) {
    StructType schema = structOf(columns);
    ObjectNode stage = definition("stage", table, schema, partitions, properties).put("what", operation);
    ObjectNode withoutRows = definition(operation, table, schema, partitions, properties);
    constraints.accept(stage);
    constraints.accept(withoutRows);
    return new Staged(
        fullName(table), schema, storage, () -> channel.ask(stage, table), () -> channel.ask(withoutRows, table));
  }

  // Procedures

  @Override
  public UnboundProcedure loadProcedure(Identifier procedure) {
    JsonNode definition = channel.ask(about("procedure", procedure), procedure);
    return new TableProcedure(definition, arguments -> {
      ObjectNode request = about("call", procedure);
      request.set("arguments", arguments);
      return channel.ask(request, procedure).path("rows");
    });
  }

  /** For {@code SHOW PROCEDURES}. Spark asks for it from 4.1 on. */
  public Identifier[] listProcedures(String[] namespace) {
    List<Identifier> found = new ArrayList<>();
    channel.ask(inWarehouse("procedures", namespace), Identifier.of(namespace, "")).path("names")
        .forEach(each -> found.add(Identifier.of(namespace, each.asText())));
    return found.toArray(new Identifier[0]);
  }

  // Requests

  private String fullName(Identifier table) {
    List<String> parts = new ArrayList<>();
    parts.add(name);
    parts.addAll(List.of(table.namespace()));
    parts.add(table.name());
    return String.join(".", parts);
  }

  private ObjectNode inWarehouse(String operation, String... namespace) {
    ObjectNode request = Channel.request(operation).put("catalog", name);
    if (warehouse != null) {
      request.put("warehouse", warehouse);
    }
    if (allowedPaths != null) {
      request.put("allowedPaths", allowedPaths);
    }
    request.set("namespace", Channel.JSON.valueToTree(namespace));
    return request;
  }

  private ObjectNode about(String operation, Identifier table) {
    return inWarehouse(operation, table.namespace()).put("name", table.name());
  }

  private ObjectNode definition(
      String operation,
      Identifier table,
      StructType schema,
      Transform[] partitions,
      Map<String, String> properties) {
    ObjectNode request = about(operation, table).put("schema", schema.json());
    ArrayNode partitioning = request.putArray("partitioning");
    for (Transform partition : partitions) {
      boolean isColumn = partition.name().equals("identity") && partition.references()[0].fieldNames().length == 1;
      if (!isColumn) {
        throw Errors.refusal(
            "unsupported", "PARTITIONED BY " + partition.describe() + ": name key columns, without a function");
      }
      partitioning.add(partition.references()[0].fieldNames()[0]);
    }
    properties.forEach(request.putObject("properties")::put);
    return request;
  }

  private static StructType structOf(Column[] columns) {
    StructType schema = new StructType();
    for (Column column : columns) {
      boolean isComputed = column.generationExpression() != null || column.identityColumnSpec() != null;
      if (column.defaultValue() != null || isComputed) {
        throw Errors.refusal(
            "unsupported", "column " + column.name() + ": DEFAULT, GENERATED and IDENTITY are not supported");
      }
      String given = column.metadataInJSON();
      Metadata metadata = given == null ? Metadata.empty() : Metadata.fromJson(given);
      if (column.comment() != null) {
        metadata = new MetadataBuilder().withMetadata(metadata).putString("comment", column.comment()).build();
      }
      schema = schema.add(new StructField(column.name(), column.dataType(), column.nullable(), metadata));
    }
    return schema;
  }

  static Map<String, String> texts(JsonNode object) {
    Map<String, String> found = new HashMap<>();
    object.fields().forEachRemaining(entry -> found.put(entry.getKey(), entry.getValue().asText()));
    return found;
  }
}
