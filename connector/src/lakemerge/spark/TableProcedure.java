package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** {@code CALL lake.system.compact(...)}: what it is called, what it takes and what it does is answered by Python. */
final class TableProcedure implements UnboundProcedure, BoundProcedure {
  private static final StructType RESULT =
      new StructType().add("name", DataTypes.StringType, false).add("value", DataTypes.StringType);

  private final JsonNode definition;
  private final Function<ObjectNode, JsonNode> run;

  /**
   * @param definition its name, description and parameters
   * @param run takes the arguments, and gives the rows of the result
   */
  TableProcedure(JsonNode definition, Function<ObjectNode, JsonNode> run) {
    this.definition = definition;
    this.run = run;
  }

  @Override
  public String name() {
    return definition.path("name").asText();
  }

  @Override
  public String description() {
    return definition.path("description").asText();
  }

  @Override
  public BoundProcedure bind(StructType types) {
    return this;
  }

  @Override
  public boolean isDeterministic() {
    return false;
  }

  @Override
  public ProcedureParameter[] parameters() {
    List<ProcedureParameter> found = new ArrayList<>();
    for (JsonNode parameter : definition.path("parameters")) {
      DataType type = DataType.fromDDL(parameter.path("type").asText());
      ProcedureParameter.Builder builder = ProcedureParameter.in(parameter.path("name").asText(), type);
      if (parameter.has("default")) {
        builder = builder.defaultValue(parameter.path("default").asText());
      }
      found.add(builder.build());
    }
    return found.toArray(new ProcedureParameter[0]);
  }

  @Override
  public Iterator<Scan> call(InternalRow arguments) {
    ObjectNode given = Channel.JSON.createObjectNode();
    ProcedureParameter[] parameters = parameters();
    for (int at = 0; at < parameters.length; at++) {
      if (!arguments.isNullAt(at)) {
        Object value = arguments.get(at, parameters[at].dataType());
        Object plain = value instanceof UTF8String ? value.toString() : value;
        given.set(parameters[at].name(), Channel.JSON.valueToTree(plain));
      }
    }
    List<InternalRow> rows = new ArrayList<>();
    for (JsonNode row : run.apply(given)) {
      UTF8String value = row.get(1).isNull() ? null : UTF8String.fromString(row.get(1).asText());
      rows.add(new GenericInternalRow(new Object[] {UTF8String.fromString(row.get(0).asText()), value}));
    }
    return List.<Scan>of(new Result(rows.toArray(new InternalRow[0]))).iterator();
  }

  private record Result(InternalRow[] rows) implements LocalScan {
    @Override
    public StructType readSchema() {
      return RESULT;
    }
  }
}
