package lakemerge.spark;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The columns that a query asks for. A statement that changes rows may ask for a column twice, under two names.
 *
 * @param columns as the query names them
 * @param stored each of them once, as the table names them
 * @param places where each of the former is in the latter
 */
record NamedColumns(StructType columns, StructType stored, int[] places) implements Serializable {
  /** {@code null} if there are others than the table's. */
  static NamedColumns of(StructType columns, NativeScanBuilder.Source source) {
    List<String> table = List.of(source.schema().fieldNames());
    StructType stored = new StructType();
    List<Integer> places = new ArrayList<>();
    for (StructField column : columns.fields()) {
      String name = source.stored(column.name());
      if (!table.contains(name)) {
        return null;
      }
      int place = Arrays.asList(stored.fieldNames()).indexOf(name);
      if (place < 0) {
        place = stored.size();
        stored = stored.add(name, column.dataType(), source.schema().apply(name).nullable(), column.metadata());
      } else if (!stored.apply(place).dataType().equals(column.dataType())) {
        return null;
      }
      places.add(place);
    }
    return new NamedColumns(columns, stored, places.stream().mapToInt(Integer::intValue).toArray());
  }

  private boolean isStored() {
    return Arrays.equals(places, IntStream.range(0, stored.size()).toArray());
  }

  /** A batch of stored columns as one of the columns that the query names. */
  ColumnarBatch of(ColumnarBatch batch) {
    if (isStored()) {
      return batch;
    }
    ColumnVector[] vectors = Arrays.stream(places).mapToObj(batch::column).toArray(ColumnVector[]::new);
    return new ColumnarBatch(vectors, batch.numRows());
  }

  /** Makes such a row of a row. */
  UnaryOperator<InternalRow> ofRows() {
    if (isStored()) {
      return row -> row;
    }
    List<Expression> references = new ArrayList<>();
    for (int place : places) {
      references.add(new BoundReference(place, stored.apply(place).dataType(), stored.apply(place).nullable()));
    }
    UnsafeProjection projection = UnsafeProjection.create(CollectionConverters.asScala(references).toSeq());
    return projection::apply;
  }
}
