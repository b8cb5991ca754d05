{{ config(materialized='table', tblproperties={'key': 'state'}) }}

select state, count(*) as orders from {{ ref('orders') }} group by state
