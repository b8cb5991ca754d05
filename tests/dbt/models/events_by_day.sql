{{ config(
    materialized='incremental',
    incremental_strategy='microbatch',
    event_time='happened',
    batch_size='day',
    begin='2026-11-01',
    lookback=0,
    partition_by=['day'],
    tblproperties={'key': 'day, id'}
) }}

select id, happened, n, cast(happened as date) as day from {{ ref('raw_events') }}
