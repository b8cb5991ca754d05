package lakemerge.spark;

import java.io.Closeable;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.Serializable;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.PrimitiveIterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.rdd.InputFileBlockHolder;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.FileFormat$;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.RecordReaderIterator;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.parquet.SpecificParquetRecordReaderBase;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Function1;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Spark's own Parquet reader, without the rows of a file that a version does not have. They are left out of each batch
 * in place, which costs nearly nothing.
 *
 * <p>To know the place of a row, this class sees each row group that Spark's reader takes. The reader is not a public
 * interface of Spark, so {@link KnownReaders} lists the builds in which it is as it is expected here. What does not fit
 * nevertheless fails the query, and is never an answer.
 */
final class SparkReader implements Serializable {
  /** Options that say what settings of the session would say otherwise. */
  private static final Map<String, String> OPTIONS =
      Map.of("datetimeRebaseMode", "CORRECTED", "int96RebaseMode", "CORRECTED");
  /** The same for settings that Spark's reader hands to its tasks. */
  private static final Map<String, String> PINNED = Map.of(
      "spark.sql.parquet.binaryAsString", "false",
      "spark.sql.parquet.int96AsTimestamp", "true",
      "spark.sql.parquet.inferTimestampNTZ.enabled", "true",
      "spark.sql.legacy.parquet.nanosAsLong", "false");

  private final Function1<PartitionedFile, Iterator<InternalRow>> read;
  private final StructType columns;
  private final boolean isFiltered;

  private SparkReader(
      Function1<PartitionedFile, Iterator<InternalRow>> read, StructType columns, boolean isFiltered) {
    this.read = read;
    this.columns = columns;
    this.isFiltered = isFiltered;
  }

  /** Whether Spark reads columns in batches. It does not if its vectorized reader is off, or if there are too many. */
  static boolean readsBatches(SparkSession session, StructType columns) {
    return new ParquetFileFormat().supportBatch(session, PythonSource.plain(columns));
  }

  /** Whether values of a type can be moved within a batch. */
  static boolean takes(DataType type) {
    if (type instanceof StructType struct) {
      return Arrays.stream(struct.fields()).allMatch(field -> takes(field.dataType()));
    }
    if (type instanceof ArrayType array) {
      return takes(array.elementType());
    }
    if (type instanceof MapType map) {
      return takes(map.keyType()) && takes(map.valueType());
    }
    // Only texts that are compared byte by byte: others are of a subclass.
    return isFixed(type) || type instanceof BinaryType || type.equals(DataTypes.StringType);
  }

  private static boolean isFixed(DataType type) {
    return type instanceof BooleanType
        || type instanceof ByteType
        || type instanceof ShortType
        || type instanceof IntegerType
        || type instanceof LongType
        || type instanceof FloatType
        || type instanceof DoubleType
        || type instanceof DecimalType
        || type instanceof DateType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType;
  }

  /**
   * @param table the columns of the table
   * @param columns those that are read, perhaps with fewer fields of structs
   * @param filters leave out row groups and pages, under the names that columns have in files; rows that do not meet
   *     them may come all the same
   * @param plan says how files are reached, and what they call columns
   * @param inBatches what {@link #readsBatches} said when the query was planned
   */
  static SparkReader of(
      SparkSession session,
      StructType table,
      StructType columns,
      Filter[] filters,
      ReadPlan plan,
      boolean inBatches) {
    Map<String, String> options = new HashMap<>(plan.hadoop);
    options.putAll(OPTIONS);
    options.put(FileFormat$.MODULE$.OPTION_RETURNING_BATCH(), Boolean.toString(inBatches));
    if (hasFloats(table)) {
      // Parquet's Java reader looks for 0.0 in a chunk's dictionary, finds only -0.0 and wrongly skips the row group.
      options.put("parquet.filter.dictionary.enabled", "false");
    }
    scala.collection.immutable.Map<String, String> given = scala.collection.immutable.Map.from(
        CollectionConverters.asScala(options));
    StructType asked = inFiles(columns, plan.fileNames);
    if (!inBatches) {
      asked = asked.add(ParquetFileFormat.ROW_INDEX_TEMPORARY_COLUMN_NAME(), DataTypes.LongType);
    }
    Function1<PartitionedFile, Iterator<InternalRow>> read = new ParquetFileFormat().buildReaderWithPartitionValues(
        session,
        inFiles(table, plan.fileNames),
        new StructType(),
        asked,
        CollectionConverters.asScala(Arrays.asList(filters)).toList(),
        given,
        new PinnedConfiguration(session.sessionState().newHadoopConfWithOptions(given)));
    return new SparkReader(read, columns, filters.length > 0);
  }

  private static StructType inFiles(StructType columns, Map<String, String> names) {
    StructType found = new StructType();
    for (StructField column : PythonSource.plain(columns).fields()) {
      found = found.add(names.getOrDefault(column.name(), column.name()), column.dataType(), true);
    }
    return found;
  }

  private static boolean hasFloats(DataType type) {
    if (type instanceof StructType struct) {
      return Arrays.stream(struct.fields()).anyMatch(field -> hasFloats(field.dataType()));
    }
    if (type instanceof ArrayType array) {
      return hasFloats(array.elementType());
    }
    if (type instanceof MapType map) {
      return hasFloats(map.keyType()) || hasFloats(map.valueType());
    }
    return type instanceof FloatType || type instanceof DoubleType;
  }

  private Iterator<InternalRow> opened(StoredFile file) {
    InputFileBlockHolder.set(file.url(), file.start(), file.share());  // for input_file_name() in a query
    try {
      return read.apply(new PartitionedFile(
          InternalRow.empty(),
          SparkPath.fromPath(new Path(file.url())),
          file.start(),
          file.end() - file.start(),
          new String[0],
          0L,
          file.bytes(),
          scala.collection.immutable.Map$.MODULE$.empty()));
    } catch (Exception error) {  // Scala's code throws checked exceptions, too
      if (error instanceof FileNotFoundException) {
        throw Errors.refusal(
            "table-damaged",
            "file " + file.url() + " is missing. If a vacuum deleted it, read a newer version; otherwise run"
                + " `lakemerge check`");
      }
      throw error;
    }
  }

  private static void close(Iterator<?> rows) throws IOException {
    if (rows instanceof Closeable open) {
      open.close();
    }
  }

  private static RuntimeException doubt(StoredFile file, String what) {
    return Errors.refusal(
        "native-read",
        "LakeMerge's scan gave up at " + file.url() + ": " + what + ". To read without it, set "
            + NativeReads.SWITCH + "=off in the session");
  }

  private static RuntimeException damaged(StoredFile file, long rows) {
    return Errors.refusal(
        "table-damaged",
        "file " + file.url() + " has " + rows + " rows; the table says " + file.rows()
            + ". Run `lakemerge check`, which names the cause");
  }

  // Batches

  /** The batches of a file, one after the other. A batch is good until the next one. */
  final class Batches implements Closeable {
    private final Iterator<?> batches;
    private final RowGroups groups;
    private ColumnarBatch batch;

    Batches(StoredFile file) {
      batches = opened(file);
      groups = RowGroups.of(batches, file, isFiltered);
    }

    boolean next() {
      while (batches.hasNext()) {
        batch = (ColumnarBatch) batches.next();
        int wanted = groups.pick(batch.numRows());
        if (wanted == 0) {
          continue;
        }
        if (wanted < batch.numRows()) {
          for (int column = 0; column < batch.numCols(); column++) {
            groups.compact(batch.column(column), wanted);
          }
          batch.setNumRows(wanted);
        }
        return true;
      }
      groups.end();
      return false;
    }

    ColumnarBatch get() {
      return batch;
    }

    @Override
    public void close() throws IOException {
      SparkReader.close(batches);
    }
  }

  /** Knows the place of each row, because it sees the row groups that Spark's reader takes. */
  private static final class RowGroups implements InvocationHandler {
    private static final Field READER = field(RecordReaderIterator.class, "rowReader");
    private static final Field GROUPS = field(SpecificParquetRecordReaderBase.class, "reader");

    private final Object inner;
    private final StoredFile file;
    private final boolean isFiltered;
    private final ArrayDeque<PageReadStore> waiting = new ArrayDeque<>();
    private int[] places = new int[4096];
    /** The rows of the row groups that were taken, and those of the batches. */
    private long taken;
    private long given;
    /** Of the row group of the current batch: rows that are left, the place of its first row, and that of the next. */
    private long left;
    private long begin;
    private long next;
    /** Which rows of the row group Parquet's filter of pages left; {@code null}: all of them. */
    private PrimitiveIterator.OfLong indexes;
    /** The place after the last row. */
    private long passed;

    private RowGroups(Object inner, StoredFile file, boolean isFiltered) {
      this.inner = inner;
      this.file = file;
      this.isFiltered = isFiltered;
    }

    /** Stands from now on between Spark's reader and its source of row groups. */
    static RowGroups of(Iterator<?> batches, StoredFile file, boolean isFiltered) {
      if (!(batches instanceof RecordReaderIterator<?>)) {
        throw doubt(file, "Spark's reader gave " + batches.getClass().getName());
      }
      try {
        Object reader = READER.get(batches);
        RowGroups groups = new RowGroups(GROUPS.get(reader), file, isFiltered);
        Class<?> kind = GROUPS.getType();
        GROUPS.set(reader, Proxy.newProxyInstance(kind.getClassLoader(), new Class<?>[] {kind}, groups));
        return groups;
      } catch (ReflectiveOperationException | IllegalArgumentException error) {
        throw doubt(file, error.toString());
      }
    }

    private static Field field(Class<?> of, String name) {
      try {
        Field found = of.getDeclaredField(name);
        found.setAccessible(true);
        return found;
      } catch (ReflectiveOperationException error) {
        throw new ExceptionInInitializerError(error);
      }
    }

    @Override
    public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
      method.setAccessible(true);
      Object found;
      try {
        found = method.invoke(inner, arguments);
      } catch (InvocationTargetException error) {
        throw error.getCause();
      }
      if (found instanceof PageReadStore group) {
        waiting.add(group);
        taken += group.getRowCount();
      }
      return found;
    }

    /** Which of the next rows the version has; all of them are of one row group. Returns how many. */
    int pick(int rows) {
      if (rows == 0) {
        return 0;
      }
      if (left == 0) {
        begin();
      }
      if (rows > left) {
        throw doubt(file, "a batch has " + rows + " rows, and its row group only " + left + " more");
      }
      left -= rows;
      given += rows;
      if (file.bits() == null) {
        return rows;
      }
      if (places.length < rows) {
        places = new int[rows];
      }
      return indexes == null ? pickConsecutive(rows) : pickIndexed(rows);
    }

    private void begin() {
      PageReadStore group = waiting.poll();
      if (group == null) {
        throw doubt(file, "there is a batch without a row group");
      }
      left = group.getRowCount();
      begin = group.getRowIndexOffset().orElseThrow(() -> doubt(file, "a row group does not say where it begins"));
      if (begin < passed || (file.rows() >= 0 && begin + left > file.rows())) {
        throw doubt(file, "rows " + begin + " to " + (begin + left) + " come after row " + passed + " of " + file.rows());
      }
      indexes = group.getRowIndexes().orElse(null);
      next = begin;
      passed = begin + left;
    }

    private int pickConsecutive(int rows) {
      long first = next;
      next += rows;
      if (!file.keeps() && hasNoBits(first, next)) {
        return rows;
      }
      int count = 0;
      for (int at = 0; at < rows; at++) {
        places[count] = at;
        if (file.has(first + at)) {
          count++;
        }
      }
      return count;
    }

    private int pickIndexed(int rows) {
      int count = 0;
      for (int at = 0; at < rows; at++) {
        long place = begin + indexes.nextLong();
        if (place < next) {
          throw doubt(file, "row " + place + " comes after row " + (next - 1));
        }
        next = place + 1;
        places[count] = at;
        if (file.has(place)) {
          count++;
        }
      }
      passed = Math.max(passed, next);
      return count;
    }

    private boolean hasNoBits(long from, long to) {
      long[] bits = file.bits();
      int last = (int) Math.min(bits.length - 1, (to - 1) >> 6);
      for (int word = (int) (from >> 6); word <= last; word++) {
        if (bits[word] != 0) {
          return false;
        }
      }
      return true;
    }

    /** All batches were read. */
    void end() {
      if (given != taken) {
        throw doubt(file, "Spark's reader took " + taken + " rows and gave " + given);
      }
      if (file.isWhole() && !isFiltered && file.rows() >= 0 && taken != file.rows()) {
        throw damaged(file, taken);
      }
    }

    /** Moves the picked values of a column to the front. */
    void compact(ColumnVector column, int count) {
      if (!(column instanceof WritableColumnVector vector)) {
        throw doubt(file, "a column is a " + column.getClass().getName());
      }
      int from = 0;
      while (from < count && places[from] == from) {
        from++;
      }
      compact(vector, from, count);
    }

    private void compact(WritableColumnVector vector, int from, int count) {
      int[] at = places;
      if (vector.isAllNull()) {
        return;
      }
      if (vector.hasNull()) {
        for (int row = from; row < count; row++) {
          if (vector.isNullAt(at[row])) {
            vector.putNull(row);
          } else {
            vector.putNotNull(row);
          }
        }
      }
      if (vector.hasDictionary()) {
        WritableColumnVector ids = vector.getDictionaryIds();
        for (int row = from; row < count; row++) {
          ids.putInt(row, ids.getInt(at[row]));
        }
        return;
      }
      DataType type = vector.dataType();
      if (type instanceof StructType struct) {
        for (int field = 0; field < struct.size(); field++) {
          compact(vector.getChild(field), from, count);
        }
      } else if (isInt(type)) {
        for (int row = from; row < count; row++) {
          vector.putInt(row, vector.getInt(at[row]));
        }
      } else if (isLong(type)) {
        for (int row = from; row < count; row++) {
          vector.putLong(row, vector.getLong(at[row]));
        }
      } else if (type instanceof DoubleType) {
        for (int row = from; row < count; row++) {
          vector.putDouble(row, vector.getDouble(at[row]));
        }
      } else if (type instanceof FloatType) {
        for (int row = from; row < count; row++) {
          vector.putFloat(row, vector.getFloat(at[row]));
        }
      } else if (type instanceof ShortType) {
        for (int row = from; row < count; row++) {
          vector.putShort(row, vector.getShort(at[row]));
        }
      } else if (type instanceof ByteType) {
        for (int row = from; row < count; row++) {
          vector.putByte(row, vector.getByte(at[row]));
        }
      } else if (type instanceof BooleanType) {
        for (int row = from; row < count; row++) {
          vector.putBoolean(row, vector.getBoolean(at[row]));
        }
      } else if (takes(type)) {
        // Texts, bytes, lists, maps and long decimals are places in another vector, which stays as it is.
        for (int row = from; row < count; row++) {
          vector.putArray(row, vector.getArrayOffset(at[row]), vector.getArrayLength(at[row]));
        }
      } else {
        throw doubt(file, "a column has the type " + type.sql());
      }
    }

    private static boolean isInt(DataType type) {
      return type instanceof IntegerType
          || type instanceof DateType
          || (type instanceof DecimalType decimal && decimal.precision() <= 9);
    }

    private static boolean isLong(DataType type) {
      return type instanceof LongType
          || type instanceof TimestampType
          || type instanceof TimestampNTZType
          || (type instanceof DecimalType decimal && decimal.precision() <= 18);
    }
  }

  // Rows

  /** The rows of a file, where Spark does not read it in batches. They come with their places. */
  final class Rows implements Closeable {
    private final StoredFile file;
    private final Iterator<InternalRow> rows;
    private final UnsafeProjection front = UnsafeProjection.create(columns);
    private final int place = columns.size();
    private InternalRow row;
    private long last = -1;
    private long seen;

    Rows(StoredFile file) {
      this.file = file;
      rows = opened(file);
    }

    boolean next() {
      while (rows.hasNext()) {
        row = rows.next();
        long at = row.getLong(place);
        if (at <= last || (file.rows() >= 0 && at >= file.rows())) {
          throw doubt(file, "row " + at + " of " + file.rows() + " comes after row " + last);
        }
        last = at;
        seen++;
        if (file.has(at)) {
          return true;
        }
      }
      if (file.isWhole() && !isFiltered && file.rows() >= 0 && seen != file.rows()) {
        throw damaged(file, seen);
      }
      return false;
    }

    InternalRow get() {
      return front.apply(row);
    }

    @Override
    public void close() throws IOException {
      SparkReader.close(rows);
    }
  }

  /** What is pinned stays as it is. */
  private static final class PinnedConfiguration extends Configuration {
    PinnedConfiguration(Configuration other) {
      super(other);
    }

    @Override
    public void set(String name, String value) {
      super.set(name, PINNED.getOrDefault(name, value));
    }
  }
}
