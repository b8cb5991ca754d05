{% snapshot orders_history %}
{{ config(
    unique_key='id',
    strategy='check',
    check_cols=['state'],
    tblproperties={'key': 'dbt_scd_id'}
) }}
select id, state, at from {{ ref('orders') }}
{% endsnapshot %}
