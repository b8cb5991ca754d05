package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What changed in a table, as a batch or a stream: {@code lake.db.orders$changes}. Its options are the feed's. */
final class ChangesTable implements SupportsRead {
  private final String name;
  private final StructType schema;
  private final Map<String, String> options;

  /** @param definition what Python answers to a load */
  ChangesTable(String name, JsonNode definition, Map<String, String> storage) {
    this.name = name;
    schema = (StructType) DataType.fromJson(definition.path("schema").asText());
    options = new HashMap<>(storage);
    options.put("readChangeFeed", "true");
    options.put("path", definition.path("changes").path("path").asText());
    options.put("lakemerge.tableId", definition.path("changes").path("id").asText());
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
    return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    return newScanBuilder(given.asCaseSensitiveMap());
  }

  /** @param given options of the feed */
  ScanBuilder newScanBuilder(Map<String, String> given) {
    Map<String, String> all = LakeMergeTable.checked(given);
    all.putAll(options);
    PythonSource source = new PythonSource("lakemerge", all);
    return ((SupportsRead) source.table(schema)).newScanBuilder(source.options());
  }
}
