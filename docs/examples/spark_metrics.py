"""A query whose progress Prometheus can scrape at http://127.0.0.1:9150/metrics."""

from prometheus_client import start_http_server
from pyspark.sql import SparkSession

from gnsqsync.spark import QueryMetrics

spark = SparkSession.builder.appName("orders").getOrCreate()
spark.streams.addListener(QueryMetrics())
start_http_server(9150)

query = (
    spark.readStream.format("nsq")
    .option("nsqdTcpAddresses", "127.0.0.1:4150")  # or lookupdHttpAddresses
    .option("subscribe", "orders")
    .option("channel", "spark")  # of this query alone
    .option("walPath", "/tmp/orders/checkpoint/nsq-wal")  # shared by driver and executors
    .load()
    .writeStream.format("parquet")
    .queryName("orders")
    .option("checkpointLocation", "/tmp/orders/checkpoint")
    .start("/tmp/orders/rows")
)
query.awaitTermination()
