{{ config(materialized='ephemeral') }}

select id, state, at from {{ ref('raw_orders') }} where at >= 10
