package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.constraints.Check;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;

/**
 * Constraints of tables. Spark has classes for them from 4.1 on. They are named here alone, because a class that names
 * them does not run on 4.0.
 */
final class Constraints {
  private Constraints() {}

  /** Describes a change of constraints. Returns false for any other change. */
  static boolean describe(TableChange change, ObjectNode into) {
    if (change instanceof TableChange.AddConstraint add) {
      Check check = checked(add.constraint());
      into.put("change", "add constraint").put("constraint", check.name()).put("condition", check.predicateSql());
      return true;
    }
    if (change instanceof TableChange.DropConstraint drop) {
      into.put("change", "drop constraint").put("constraint", drop.name()).put("ifExists", drop.ifExists());
      return true;
    }
    return false;
  }

  /** Adds the constraints of a new table to a request. */
  static void define(Constraint[] constraints, ObjectNode request) {
    for (Constraint constraint : constraints) {
      Check check = checked(constraint);
      request.withArray("constraints").addArray().add(check.name()).add(check.predicateSql());
    }
  }

  /** The constraints that Python says a table has. */
  static Constraint[] of(JsonNode texts) {
    List<Constraint> found = new ArrayList<>();
    texts.fields().forEachRemaining(entry -> found.add(
        Constraint.check(entry.getKey())
            .predicateSql(entry.getValue().asText())
            .validationStatus(Constraint.ValidationStatus.VALID)
            .build()));
    return found.toArray(new Constraint[0]);
  }

  private static Check checked(Constraint constraint) {
    if (!(constraint instanceof Check check)) {
      throw Errors.refusal(
          "unsupported",
          constraint.toDDL() + ": a table has CHECK constraints only. Its key is in TBLPROPERTIES ('key' = 'id')");
    }
    if (!check.enforced()) {
      throw Errors.refusal("unsupported", check.toDDL() + ": each row meets a constraint, so leave out NOT ENFORCED");
    }
    return check;
  }
}
