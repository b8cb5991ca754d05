package lakemerge.spark;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;
import scala.jdk.javaapi.CollectionConverters;

/** Spark's filters as the SQL that LakeMerge's Python reads: comparisons of columns with values. */
final class Filters {
  /** The first day of the calendar of today, in days since 1970. */
  private static final long GREGORIAN = -141427;
  private static final long MICROS_PER_DAY = 86_400_000_000L;

  private Filters() {}

  /**
   * Whether an expression has a value from before the calendar of today, which begins on the 15th of October 1582.
   * Spark's filters have Java's dates, which lack ten days before that one and shift them.
   */
  static boolean isOld(Object expression) {
    if (expression instanceof InSet in) {
      return CollectionConverters.asJava(in.hset()).stream().anyMatch(value -> isOld(value, in.child().dataType()));
    }
    return expression instanceof org.apache.spark.sql.catalyst.expressions.Literal literal
        && isOld(literal.value(), literal.dataType());
  }

  private static boolean isOld(Object value, DataType type) {
    if (!(value instanceof Number number)) {
      return false;
    }
    return (type instanceof DateType && number.longValue() < GREGORIAN)
        || (type instanceof TimestampType && number.longValue() < (GREGORIAN + 1) * MICROS_PER_DAY);
  }

  /** Whether all columns of a filter are of a table. Spark also has columns of its own, and others that we tell it of. */
  static boolean isOf(StructType table, Predicate filter) {
    List<String> names = List.of(table.fieldNames());
    return Arrays.stream(filter.references()).allMatch(column -> names.contains(column.fieldNames()[0]));
  }

  /** The text of a filter, or nothing where it cannot be said. Columns inside of structs are not. */
  static Optional<String> text(Predicate filter) {
    Expression[] parts = filter.children();
    switch (filter.name()) {
      case "AND":
      case "OR":
        Optional<String> left = text((Predicate) parts[0]);
        Optional<String> right = text((Predicate) parts[1]);
        if (left.isEmpty() || right.isEmpty()) {
          return filter.name().equals("AND") ? left.or(() -> right) : Optional.empty();
        }
        return Optional.of("(" + left.get() + " " + filter.name() + " " + right.get() + ")");
      case "=":
      case "<":
      case "<=":
      case ">":
      case ">=":
        return column(parts[0]).flatMap(name -> value(parts[1]).map(value -> name + " " + filter.name() + " " + value));
      case "IS_NULL":
        return column(parts[0]).map(name -> name + " IS NULL");
      case "IS_NOT_NULL":
        return column(parts[0]).map(name -> name + " IS NOT NULL");
      case "IN":
        List<String> values = new ArrayList<>();
        for (int at = 1; at < parts.length; at++) {
          value(parts[at]).ifPresent(values::add);
        }
        if (values.isEmpty() || values.size() < parts.length - 1) {
          return Optional.empty();
        }
        return column(parts[0]).map(name -> name + " IN (" + String.join(", ", values) + ")");
      default:
        return Optional.empty();
    }
  }

  /** The text of a condition on partitions, exactly as it is meant, or nothing. */
  static Optional<String> exact(Predicate condition) {
    Expression[] parts = condition.children();
    switch (condition.name()) {
      case "AND":
      case "OR":
        return exact((Predicate) parts[0]).flatMap(left -> exact((Predicate) parts[1])
            .map(right -> "(" + left + " " + condition.name() + " " + right + ")"));
      case "NOT":
        return exact((Predicate) parts[0]).map(text -> "NOT (" + text + ")");
      case "<=>":
        if (parts[1] instanceof Literal<?> literal && literal.value() == null) {
          return column(parts[0]).map(name -> name + " IS NULL");
        }
        return column(parts[0]).flatMap(name -> value(parts[1])
            .map(value -> "(" + name + " IS NOT NULL AND " + name + " = " + value + ")"));
      default:
        return text(condition);
    }
  }

  private static Optional<String> column(Expression part) {
    if (part instanceof NamedReference name && name.fieldNames().length == 1) {
      return Optional.of("`" + name.fieldNames()[0].replace("`", "``") + "`");
    }
    return Optional.empty();
  }

  private static Optional<String> value(Expression part) {
    if (!(part instanceof Literal<?> literal) || literal.value() == null) {
      return Optional.empty();
    }
    Object value = literal.value();
    if (literal.dataType() instanceof StringType type && type.equals(org.apache.spark.sql.types.DataTypes.StringType)) {
      return Optional.of("'" + value.toString().replace("\\", "\\\\").replace("'", "\\'") + "'");
    }
    if (literal.dataType() instanceof DateType) {
      return Optional.of("DATE '" + java.time.LocalDate.ofEpochDay(((Number) value).longValue()) + "'");
    }
    if (literal.dataType() instanceof TimestampType) {
      long micros = ((Number) value).longValue();
      java.time.Instant instant = java.time.Instant.ofEpochSecond(
          Math.floorDiv(micros, 1_000_000L), Math.floorMod(micros, 1_000_000L) * 1000L);
      return Optional.of("TIMESTAMP '" + instant + "'");
    }
    if (literal.dataType() instanceof DecimalType) {
      return Optional.of(new BigDecimal(value.toString()).toPlainString());
    }
    boolean isWhole = literal.dataType() instanceof LongType
        || literal.dataType() instanceof IntegerType
        || literal.dataType() instanceof ShortType
        || literal.dataType() instanceof ByteType;
    return isWhole ? Optional.of(value.toString()) : Optional.empty();
  }
}
