package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.XxHash64;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * What a plan says of its file slices: of each the partition, the bucket and the range of keys. So file slices that
 * cannot hold a row that is asked for are left out, also when a query runs and the keys of a join are known.
 *
 * <p>All values are Spark's internal ones.
 */
final class FileSlices {
  /** So many keys are few. */
  private static final int FEW_KEYS = 100;
  /** So many keys are hashed at most. For more, buckets are not looked at. */
  private static final long MOST_HASHES = 4_000_000;
  /** So many keys are hashed at most for each bucket of a partition. Far fewer have a key in each of 65,536 buckets. */
  private static final long MOST_OF_A_BUCKET = 32;

  private final StructType columns;
  private final List<String> partitionBy = new ArrayList<>();
  private final List<String> key = new ArrayList<>();
  private final List<Object[]> partitions = new ArrayList<>();
  private final List<Slice> slices = new ArrayList<>();
  private final long mostOfPartition;

  /**
   * @param partition the number of its partition
   * @param buckets how many buckets the hash of a key is divided by
   * @param lower where the first key column begins; {@code null}: anywhere
   * @param upper where it ends, the value included; {@code null}: anywhere
   */
  private record Slice(int partition, int bucket, int buckets, Object lower, Object upper) {}

  /** @param told what the plan says; missing for a plan of files that are of no file slices */
  FileSlices(JsonNode told) {
    columns = told.has("columns") ? (StructType) DataType.fromJson(told.path("columns").asText()) : new StructType();
    told.path("partitionBy").forEach(name -> partitionBy.add(name.asText()));
    told.path("key").forEach(name -> key.add(name.asText()));
    for (JsonNode values : told.path("partitions")) {
      Object[] partition = new Object[partitionBy.size()];
      for (int at = 0; at < partition.length; at++) {
        partition[at] = value(values.get(at), columns.apply(partitionBy.get(at)).dataType());
      }
      partitions.add(partition);
    }
    DataType first = key.isEmpty() ? null : columns.apply(key.get(0)).dataType();
    for (JsonNode slice : told.path("slices")) {
      slices.add(new Slice(
          slice.get(0).asInt(),
          slice.get(1).asInt(),
          slice.get(2).asInt(),
          value(slice.get(3), first),
          value(slice.get(4), first)));
    }
    long buckets = slices.stream().mapToInt(Slice::buckets).max().orElse(1);
    mostOfPartition = Math.max(FEW_KEYS, MOST_OF_A_BUCKET * buckets);
  }

  private static Object value(JsonNode told, DataType type) {
    if (told == null || told.isNull()) {
      return null;
    }
    if (type instanceof BooleanType) {
      return told.asBoolean();
    }
    if (type instanceof ByteType) {
      return (byte) told.asInt();
    }
    if (type instanceof ShortType) {
      return (short) told.asInt();
    }
    if (type instanceof IntegerType || type instanceof DateType) {
      return told.asInt();
    }
    if (type instanceof LongType || type instanceof TimestampType || type instanceof TimestampNTZType) {
      return told.asLong();
    }
    if (type instanceof DecimalType decimal) {
      return Decimal.apply(new BigDecimal(told.asText()), decimal.precision(), decimal.scale());
    }
    if (type.equals(DataTypes.StringType)) {
      return UTF8String.fromString(told.asText());
    }
    throw new IllegalArgumentException("a plan has values of the type " + type.sql());
  }

  /** The columns whose values choose file slices: those of partitions, and those of the key if one of them suffices. */
  List<String> choosing() {
    List<String> found = new ArrayList<>(partitions.size() > 1 ? partitionBy : List.of());
    List<String> others = key.stream().filter(name -> !partitionBy.contains(name)).toList();
    boolean hasBuckets = slices.stream().anyMatch(slice -> slice.buckets > 1);
    boolean hasRanges = slices.stream().anyMatch(slice -> slice.lower != null || slice.upper != null);
    if (others.size() == 1 && hasBuckets) {
      found.addAll(others);
    } else if (hasRanges && !partitionBy.contains(key.get(0))) {
      found.add(key.get(0));
    }
    return found;
  }

  /** The column whose hash alone chooses a row's bucket; nothing if there is none. */
  Optional<String> bucketColumn() {
    return partitionBy.isEmpty() && key.size() == 1 ? Optional.of(key.get(0)) : Optional.empty();
  }

  /** The number of buckets, if it is the same for all file slices; else 0. */
  int buckets() {
    int[] found = slices.stream().mapToInt(Slice::buckets).distinct().toArray();
    return found.length == 1 ? found[0] : 0;
  }

  int bucketOf(int slice) {
    return slices.get(slice).bucket;
  }

  /**
   * @param slices the numbers of file slices
   * @param isOfFewKeys whether conditions name few keys, so that little of each file slice is read
   */
  record Choice(BitSet slices, boolean isOfFewKeys) {}

  /**
   * The file slices that may hold rows that meet all conditions; nothing if all may, and keys are not few.
   *
   * @param conditions on rows
   * @param listed the only values that columns have, too
   */
  Optional<Choice> matching(List<Expression> conditions, Map<String, Set<Object>> listed) {
    if (slices.isEmpty() || (conditions.isEmpty() && listed.isEmpty())) {
      return Optional.empty();
    }
    Map<String, Set<Object>> values = listed;
    for (Expression condition : conditions) {
      values = merged(values, left(condition));
    }
    List<Judge> judges = conditions.stream().map(this::judge).toList();
    BitSet may = new BitSet();
    for (int number = 0; number < partitions.size(); number++) {
      may.set(number, mayHold(partitions.get(number), judges, values));
    }
    int many = may.cardinality();
    List<Buckets> buckets = new ArrayList<>();
    for (int number = 0; number < partitions.size(); number++) {
      buckets.add(may.get(number) ? new Buckets(hashes(partitions.get(number), values, many)) : null);
    }
    Comparable<?>[] ends = ends(key.isEmpty() ? null : values.get(key.get(0)));
    BitSet found = new BitSet();
    for (int number = 0; number < slices.size(); number++) {
      Slice slice = slices.get(number);
      Buckets own = buckets.get(slice.partition);
      found.set(number, own != null && own.mayHold(slice) && reaches(slice, ends));
    }
    // Python judges rows by the conditions alone, and has to find the whole key there. It does not know what a runtime
    // filter lists.
    boolean isOfFewKeys = listed.isEmpty()
        && values.keySet().containsAll(key)
        && buckets.stream().allMatch(each -> each == null || each.areAtMost(FEW_KEYS));
    return found.cardinality() == slices.size() && !isOfFewKeys
        ? Optional.empty()
        : Optional.of(new Choice(found, isOfFewKeys));
  }

  private boolean mayHold(Object[] partition, List<Judge> judges, Map<String, Set<Object>> values) {
    InternalRow row = new GenericInternalRow(partition);
    for (int at = 0; at < partition.length; at++) {
      Set<Object> only = values.get(partitionBy.get(at));
      if (only != null && (partition[at] == null || !only.contains(partition[at]))) {
        return false;
      }
    }
    return judges.stream().allMatch(judge -> judge.mayHold(row));
  }

  /** The values that a runtime filter lists, by column. */
  static Map<String, Set<Object>> listed(Predicate[] filters) {
    Map<String, Set<Object>> found = new HashMap<>();
    for (Predicate filter : filters) {
      var parts = filter.children();
      if (!List.of("IN", "=").contains(filter.name())
          || !(parts[0] instanceof NamedReference column)
          || column.fieldNames().length != 1) {
        continue;
      }
      Set<Object> values = new HashSet<>();
      boolean areLiterals = true;
      for (int at = 1; at < parts.length; at++) {
        if (parts[at] instanceof org.apache.spark.sql.connector.expressions.Literal<?> literal) {
          values.add(literal.value());
        } else {
          areLiterals = false;
        }
      }
      values.remove(null);  // null is equal to nothing
      if (areLiterals) {
        found.merge(column.fieldNames()[0], values, FileSlices::common);
      }
    }
    return found;
  }

  private static Set<Object> common(Set<Object> one, Set<Object> other) {
    if (one.stream().anyMatch(byte[].class::isInstance)) {
      return one;  // Java compares arrays by their place
    }
    Set<Object> both = new HashSet<>(one);
    both.retainAll(other);
    return both;
  }

  // Conditions

  /** Whether a condition may hold for some row of a partition. */
  private interface Judge {
    boolean mayHold(InternalRow partition);
  }

  private Judge judge(Expression condition) {
    if (condition instanceof And both) {
      Judge left = judge(both.left());
      Judge right = judge(both.right());
      return row -> left.mayHold(row) && right.mayHold(row);
    }
    if (condition instanceof Or either) {
      Judge left = judge(either.left());
      Judge right = judge(either.right());
      return row -> left.mayHold(row) || right.mayHold(row);
    }
    boolean known = condition.deterministic()
        && CollectionConverters.asJava(condition.references().toSeq()).stream()
            .allMatch(column -> partitionBy.contains(column.name()));
    if (!known) {
      return row -> true;
    }
    Expression bound = replaced(condition, column -> {
      int place = partitionBy.indexOf(column.name());
      return new BoundReference(place, column.dataType(), true);
    });
    return row -> {
      try {
        return Boolean.TRUE.equals(bound.eval(row));
      } catch (Exception | LinkageError error) {  // Spark's errors are checked exceptions, which Scala does not declare
        return true;  // what fails for these values fails for the rows, if there are any, or is run by Python
      }
    };
  }

  /** An expression with others in the place of its columns. */
  static Expression replaced(Expression expression, java.util.function.Function<AttributeReference, Expression> by) {
    return (Expression) expression.transform(new AbstractPartialFunction<Expression, Expression>() {
      @Override
      public boolean isDefinedAt(Expression part) {
        return part instanceof AttributeReference;
      }

      @Override
      @SuppressWarnings("unchecked")
      public <A extends Expression, B> B applyOrElse(A part, Function1<A, B> otherwise) {
        return part instanceof AttributeReference column ? (B) by.apply(column) : otherwise.apply(part);
      }
    });
  }

  /** The only values that columns of the key have in rows that meet a condition. */
  private Map<String, Set<Object>> left(Expression condition) {
    if (condition instanceof And both) {
      return merged(left(both.left()), left(both.right()));
    }
    if (condition instanceof Or either) {
      Map<String, Set<Object>> found = left(either.left());
      Map<String, Set<Object>> other = left(either.right());
      found.keySet().retainAll(other.keySet());
      found.replaceAll((name, values) -> {
        Set<Object> all = new HashSet<>(values);
        all.addAll(other.get(name));
        return all;
      });
      return found;
    }
    Set<Object> only = new HashSet<>();
    Expression column = null;
    boolean isKnown = true;
    if (condition instanceof EqualTo equal) {
      boolean isTurned = equal.left() instanceof Literal;
      column = isTurned ? equal.right() : equal.left();
      isKnown = add(isTurned ? equal.left() : equal.right(), column, only);
    } else if (condition instanceof EqualNullSafe equal) {
      column = equal.left();
      isKnown = add(equal.right(), column, only);
    } else if (condition instanceof In in) {
      column = in.value();
      for (Expression part : CollectionConverters.asJava(in.list())) {
        isKnown = isKnown && add(part, column, only);
      }
    } else if (condition instanceof InSet in) {
      column = in.child();
      only.addAll(CollectionConverters.asJava(in.hset()));
      only.remove(null);
    } else {  // truth values stand for themselves
      boolean isTurned = condition instanceof Not;
      column = isTurned ? ((Not) condition).child() : condition;
      only.add(!isTurned);
    }
    Map<String, Set<Object>> found = new HashMap<>();
    if (isKnown && column instanceof AttributeReference reference && key.contains(reference.name())) {
      found.put(reference.name(), only);
    }
    return found;
  }

  private static Map<String, Set<Object>> merged(Map<String, Set<Object>> one, Map<String, Set<Object>> other) {
    Map<String, Set<Object>> found = new HashMap<>(one);
    other.forEach((name, values) -> found.merge(name, values, FileSlices::common));
    return found;
  }

  private static boolean add(Expression value, Expression column, Set<Object> to) {
    if (!(value instanceof Literal literal) || !literal.dataType().equals(column.dataType())) {
      return false;
    }
    if (literal.value() != null) {  // keys have no nulls
      to.add(literal.value());
    }
    return true;
  }

  // Buckets

  /**
   * The hashes of the keys that may be in a partition; {@code null} if they are not known, or too many.
   *
   * @param many how many partitions are looked at
   */
  private long[] hashes(Object[] partition, Map<String, Set<Object>> values, long many) {
    List<List<Object>> parts = new ArrayList<>();
    long count = 1;
    for (String name : key) {
      int place = partitionBy.indexOf(name);
      Set<Object> known = place < 0 ? values.get(name) : null;
      if (place < 0 && known == null) {
        return null;
      }
      parts.add(place < 0 ? new ArrayList<>(known) : Arrays.asList(partition[place]));
      count *= parts.get(parts.size() - 1).size();
      if (count > mostOfPartition || count * many > MOST_HASHES) {
        return null;
      }
    }
    if (key.isEmpty()) {
      return null;
    }
    List<Expression> references = new ArrayList<>();
    for (int at = 0; at < key.size(); at++) {
      references.add(new BoundReference(at, columns.apply(key.get(at)).dataType(), true));
    }
    XxHash64 hash = new XxHash64(CollectionConverters.asScala(references).toSeq());
    GenericInternalRow row = new GenericInternalRow(key.size());
    long[] found = new long[parts.stream().mapToInt(List::size).reduce(1, (one, other) -> one * other)];
    for (int number = 0; number < found.length; number++) {
      int rest = number;
      for (int at = 0; at < parts.size(); at++) {
        row.update(at, parts.get(at).get(rest % parts.get(at).size()));
        rest /= parts.get(at).size();
      }
      found[number] = (Long) hash.eval(row);
    }
    return found;
  }

  /** The buckets of some keys, for each number of buckets that file slices have. */
  private static final class Buckets {
    private final long[] hashes;
    private final Map<Integer, BitSet> byCount = new HashMap<>();

    Buckets(long[] hashes) {
      this.hashes = hashes;
    }

    boolean areAtMost(int keys) {
      return hashes != null && hashes.length <= keys;
    }

    boolean mayHold(Slice slice) {
      if (hashes == null) {
        return true;
      }
      return byCount.computeIfAbsent(slice.buckets, count -> {
        BitSet found = new BitSet();
        for (long hash : hashes) {
          found.set((int) Math.floorMod(hash, (long) count));
        }
        return found;
      }).get(slice.bucket);
    }
  }

  // Ranges

  /** The least and the greatest of some values; {@code null} if they are not known. */
  private static Comparable<?>[] ends(Set<Object> values) {
    if (values == null || values.isEmpty() || !values.stream().allMatch(Comparable.class::isInstance)) {
      return null;
    }
    Comparable<?>[] found = null;
    for (Object value : values) {
      Comparable<?> each = (Comparable<?>) value;
      if (found == null) {
        found = new Comparable<?>[] {each, each};
      } else if (compare(each, found[0]) < 0) {
        found[0] = each;
      } else if (compare(each, found[1]) > 0) {
        found[1] = each;
      }
    }
    return found;
  }

  @SuppressWarnings("unchecked")
  private static int compare(Object one, Object other) {
    return ((Comparable<Object>) one).compareTo(other);
  }

  private static boolean reaches(Slice slice, Comparable<?>[] ends) {
    return ends == null
        || ((slice.lower == null || compare(ends[1], slice.lower) >= 0)
            && (slice.upper == null || compare(ends[0], slice.upper) <= 0));
  }
}
