{{ config(materialized='table', tblproperties={'key': 'id'}) }}

select id, max(at) as at from {{ ref('raw_orders') }} group by id
