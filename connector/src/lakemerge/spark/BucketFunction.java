package lakemerge.spark;

import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.XxHash64;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * {@code bucket(number, key)}: the bucket that the key of a row is in. Spark compares it to learn that two tables have
 * their keys in the same buckets, so that it need not move rows to join them.
 */
final class BucketFunction implements UnboundFunction {
  static final String NAME = "bucket";

  static UnboundFunction load(Identifier identifier) throws NoSuchFunctionException {
    if (identifier.namespace().length > 0 || !identifier.name().equalsIgnoreCase(NAME)) {
      throw new NoSuchFunctionException(identifier);
    }
    return new BucketFunction();
  }

  /** A catalog of this function alone, for tables that are in no catalog. */
  static final class Only implements FunctionCatalog {
    @Override
    public void initialize(String name, CaseInsensitiveStringMap options) {}

    @Override
    public String name() {
      return "lakemerge";
    }

    @Override
    public Identifier[] listFunctions(String[] namespace) {
      return new Identifier[] {Identifier.of(new String[0], NAME)};
    }

    @Override
    public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
      return load(identifier);
    }
  }

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return NAME + "(number, key): the bucket of a key of one column, of a number of buckets";
  }

  @Override
  public BoundFunction bind(StructType arguments) {
    if (arguments.size() != 2 || !(arguments.apply(0).dataType() instanceof IntegerType)) {
      throw new UnsupportedOperationException(description());
    }
    return new Of(arguments.apply(1).dataType());
  }

  /** @param key the type of the key: equal numbers of other types are in other buckets */
  private record Of(DataType key) implements ScalarFunction<Integer> {
    @Override
    public DataType[] inputTypes() {
      return new DataType[] {DataTypes.IntegerType, key};
    }

    @Override
    public DataType resultType() {
      return DataTypes.IntegerType;
    }

    @Override
    public String name() {
      return NAME;
    }

    @Override
    public String canonicalName() {
      return "lakemerge.bucket(" + key.sql() + ")";
    }

    @Override
    public Integer produceResult(InternalRow input) {
      List<Expression> value = List.of(new BoundReference(1, key, true));
      long hash = (Long) new XxHash64(CollectionConverters.asScala(value).toSeq()).eval(input);
      return (int) Math.floorMod(hash, (long) input.getInt(0));
    }
  }
}
