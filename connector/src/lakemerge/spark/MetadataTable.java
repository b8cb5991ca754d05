package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What a table says about itself, as rows: {@code lake.db.orders$history}. */
final class MetadataTable implements Table, SupportsRead {
  private final String name;
  private final StructType schema;
  private final PythonSource source;

  MetadataTable(String name, JsonNode answer, Map<String, String> storage) {
    this.name = name;
    schema = (StructType) DataType.fromJson(answer.path("schema").asText());
    ObjectNode request = answer.path("rows").deepCopy();
    ObjectNode options = request.putObject("storage");
    storage.forEach(options::put);
    source = new PythonSource("lakemerge_catalog", Map.of("request", request.toString(), "rows", "true"));
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
    return ((SupportsRead) source.table()).newScanBuilder(source.options());
  }
}
