{#
  Lets dbt-spark write LakeMerge tables. It knows file formats by a fixed list. "delta" is the one that it replaces in
  one commit, merges into and makes snapshots of, all of which LakeMerge's catalog does. So models say
  file_format: delta, and these macros make LakeMerge tables of them.
#}

{% macro spark__file_format_clause() %}
    using lakemerge
{% endmacro %}

{# Existing tables count as "delta", so that they are replaced, and never dropped first. #}
{% macro spark__list_relations_without_caching(relation) %}
    {% call statement('list_relations_without_caching', fetch_result=True) %}
        show table extended in {{ relation.schema }} like '*'
    {% endcall %}
    {% set found = [] %}
    {% for row in load_result('list_relations_without_caching').table %}
        {% do found.append([row[0], row[1], row[2], row[3] | replace('Provider: lakemerge', 'Provider: delta')]) %}
    {% endfor %}
    {% do return(found) %}
{% endmacro %}

{# The catalog has no views, and a temporary one does. #}
{% macro spark_build_snapshot_staging_table(strategy, sql, target_relation) %}
    {% set staging = api.Relation.create(identifier=target_relation.identifier ~ '__dbt_tmp', type='view') %}
    {% call statement('build_snapshot_staging_relation') %}
        {{ create_temporary_view(staging, snapshot_staging_table(strategy, sql, target_relation)) }}
    {% endcall %}
    {% do return(staging) %}
{% endmacro %}

{# A seed is a table, too, so it has a key: tblproperties say which. #}
{% macro spark__create_csv_table(model, agate_table) %}
    {% set types = model['config'].get('column_types', {}) %}
    {% set sql %}
        create or replace table {{ this }} (
        {%- for name in agate_table.column_names %}
            {{ adapter.quote(name) }} {{ types.get(name, adapter.convert_type(agate_table, loop.index0)) }}
            {{- ',' if not loop.last }}
        {%- endfor %}
        )
        {{ file_format_clause() }}
        {{ tblproperties_clause() }}
        {{ partition_cols(label='partitioned by') }}
        {{ comment_clause() }}
    {% endset %}
    {% call statement('_') %}
        {{ sql }}
    {% endcall %}
    {% do return(sql) %}
{% endmacro %}

{% macro spark__reset_csv_table(model, full_refresh, old_relation, agate_table) %}
    {% do return(create_csv_table(model, agate_table)) %}
{% endmacro %}
