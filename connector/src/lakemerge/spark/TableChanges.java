package lakemerge.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.catalog.TableChange;
import scala.Product;

/** Changes of a table's definition, as JSON. */
final class TableChanges {
  private static final String OF_DELTA = "org.apache.spark.sql.delta.constraints.";

  private TableChanges() {}

  static void describe(TableChange change, ObjectNode into) {
    if (change instanceof TableChange.SetProperty set) {
      into.put("change", "set property").put("property", set.property()).put("value", set.value());
    } else if (change instanceof TableChange.RemoveProperty remove) {
      into.put("change", "remove property").put("property", remove.property());
    } else if (change instanceof TableChange.AddColumn add) {
      if (add.defaultValue() != null) {
        throw noDefault("ADD COLUMN " + String.join(".", add.fieldNames()) + " ... DEFAULT");
      }
      column(into.put("change", "add column"), add.fieldNames());
      into.put("type", add.dataType().json()).put("nullable", add.isNullable()).put("comment", add.comment());
      position(into, add.position());
    } else if (change instanceof TableChange.UpdateColumnType update) {
      column(into.put("change", "type"), update.fieldNames());
      into.put("type", update.newDataType().json());
    } else if (change instanceof TableChange.UpdateColumnNullability update) {
      column(into.put("change", "nullability"), update.fieldNames());
      into.put("nullable", update.nullable());
    } else if (change instanceof TableChange.UpdateColumnComment update) {
      column(into.put("change", "comment"), update.fieldNames());
      into.put("comment", update.newComment());
    } else if (change instanceof TableChange.UpdateColumnPosition update) {
      column(into.put("change", "position"), update.fieldNames());
      position(into, update.position());
    } else if (change instanceof TableChange.UpdateColumnDefaultValue update) {
      throw noDefault("ALTER COLUMN " + String.join(".", update.fieldNames()) + " SET or DROP DEFAULT");
    } else if (change instanceof TableChange.RenameColumn rename) {
      column(into.put("change", "rename column"), rename.fieldNames());
      into.put("to", rename.newName());
    } else if (change instanceof TableChange.DeleteColumn drop) {
      column(into.put("change", "drop column"), drop.fieldNames());
    } else if (!ofDelta(change, into) && !(Sparks.hasConstraints() && Constraints.describe(change, into))) {
      throw Errors.refusal("unsupported", "ALTER TABLE: " + change.getClass().getSimpleName());
    }
  }

  /**
   * Describes a change of constraints that the parser of delta-spark made: a session with Delta's extension does not
   * leave these statements to Spark. Returns false for any other change.
   */
  private static boolean ofDelta(TableChange change, ObjectNode into) {
    String name = change.getClass().getName();
    if (name.equals(OF_DELTA + "AddConstraint") && change instanceof Product added) {
      into.put("change", "add constraint").put("constraint", added.productElement(0).toString());
      into.put("condition", added.productElement(1).toString());
      return true;
    }
    if (name.equals(OF_DELTA + "DropConstraint") && change instanceof Product dropped) {
      into.put("change", "drop constraint").put("constraint", dropped.productElement(0).toString());
      into.put("ifExists", (Boolean) dropped.productElement(1));
      return true;
    }
    return false;
  }

  private static RuntimeException noDefault(String what) {
    return Errors.refusal("unsupported", what + ": columns have no default values; a value that is not given is null");
  }

  private static void column(ObjectNode into, String[] names) {
    ArrayNode parts = into.putArray("column");
    for (String part : names) {
      parts.add(part);
    }
  }

  private static void position(ObjectNode into, TableChange.ColumnPosition position) {
    if (position instanceof TableChange.After after) {
      into.put("after", after.column());
    } else if (position != null) {
      into.put("first", true);
    }
  }
}
