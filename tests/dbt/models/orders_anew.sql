{{ config(
    materialized='incremental',
    incremental_strategy='insert_overwrite',
    tblproperties={'key': 'id', 'ordering': 'at'}
) }}

select id, state, at from {{ ref('recent') }}
{% if is_incremental() %}
where at >= 20
{% endif %}
