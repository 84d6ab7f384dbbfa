"""Publish a DataFrame: one message a row, confirmed by nsqd, at least once."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("orders").getOrCreate()

orders = spark.range(1, 1001).select(
    F.lit("orders").alias("topic"),
    F.to_json(F.struct(F.col("id").alias("number"))).alias("value"),
)
(
    orders.write.format("nsq")
    .option("nsqdTcpAddresses", "127.0.0.1:4150")  # or lookupdHttpAddresses
    .mode("append")
    .save()
)
