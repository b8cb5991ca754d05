{{ config(
    materialized='incremental',
    incremental_strategy='merge',
    unique_key='id',
    tblproperties={'key': 'id', 'ordering': 'at'}
) }}

select id, max_by(state, at) as state, max(at) as at
from {{ ref('raw_orders') }}
{% if is_incremental() %}
where at > (select coalesce(max(at), 0) from {{ this }})
{% endif %}
group by id
