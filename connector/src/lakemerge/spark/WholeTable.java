package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.expressions.filter.Predicate;

/**
 * A table that is loaded for no write, as TRUNCATE loads it.
 *
 * <p>Spark makes a TRUNCATE of a DELETE without a condition if the table can be truncated. The target of a DELETE is
 * loaded for writing, and is no such table, so that tasks clear its rows.
 */
final class WholeTable extends LakeMergeTable implements SupportsDeleteV2 {
  private final JsonNode constraints;

  WholeTable(String name, JsonNode definition, Map<String, String> storage, Channel channel, String isolation) {
    super(name, definition, storage, channel, isolation, false);
    constraints = definition.path("constraints");
  }

  /**
   * What DESCRIBE and SHOW CREATE TABLE say; Spark 4.1 and later ask for it. The target of a command has none for
   * Spark: it would also judge the rows that a MERGE deletes, whose columns it sets to null. Each write is judged by
   * LakeMerge.
   */
  public Constraint[] constraints() {
    return Constraints.of(constraints);
  }

  @Override
  public boolean truncateTable() {
    Sparks.checkWrites("TRUNCATE TABLE");
    ask("truncate", request -> {});
    return true;
  }

  /** Without this, a DELETE whose target Spark has loaded for no write would be a TRUNCATE. */
  @Override
  public boolean canDeleteWhere(Predicate[] predicates) {
    return Arrays.stream(predicates).allMatch(predicate -> predicate.name().equals("ALWAYS_TRUE"));
  }

  /** The driver clears the rows. They leave tombstones, and conflict with later commits. */
  @Override
  public void deleteWhere(Predicate[] predicates) {
    Sparks.checkWrites("DELETE");
    ask("delete all", request -> request.put("version", version).put("isolation", isolation()));
  }
}
