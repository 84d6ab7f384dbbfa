"""Orders in SQL: count those that wait, and publish the large ones to another topic."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("orders").getOrCreate()

spark.sql("""
    CREATE TEMPORARY VIEW orders USING nsq OPTIONS (
        subscribe 'orders',
        channel 'sql',
        nsqdTcpAddresses '127.0.0.1:4150',
        walPath '/tmp/orders/nsq-wal',
        drainId '2026-11-25'
    )
""")
spark.sql("""
    SELECT o.customer, count(*) AS orders, sum(o.amount) AS amount
    FROM (SELECT from_json(string(value), 'customer STRING, amount INT') AS o FROM orders)
    GROUP BY o.customer ORDER BY o.customer
""").show()

spark.sql("""
    CREATE TEMPORARY VIEW large_orders (value BINARY) USING nsq OPTIONS (
        topic 'large-orders',
        nsqdTcpAddresses '127.0.0.1:4150'
    )
""")
spark.sql("""
    INSERT INTO large_orders
    SELECT value FROM orders WHERE get_json_object(string(value), '$.amount') >= 100
""")
