{#- "append" is an INSERT, and that is an upsert: the table's merger keeps the newest record of each key, so late
    events and events that come twice do no harm. -#}
{{ config(
    materialized='incremental',
    incremental_strategy='append',
    tblproperties={'key': 'id', 'ordering': 'at'}
) }}

select id, state, at from {{ ref('raw_orders') }}
