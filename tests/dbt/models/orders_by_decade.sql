{{ config(
    materialized='incremental',
    incremental_strategy='insert_overwrite',
    partition_by=['decade'],
    tblproperties={'key': 'decade, id', 'ordering': 'at'}
) }}

select id, state, at, cast(at div 10 as int) as decade
from {{ ref('recent') }}
{% if is_incremental() %}
where at >= 20
{% endif %}
