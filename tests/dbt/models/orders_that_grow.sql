{{ config(
    materialized='incremental',
    incremental_strategy='append',
    on_schema_change='append_new_columns',
    tblproperties={'key': 'id', 'ordering': 'at'}
) }}

select id, at from {{ ref('raw_orders') }}
