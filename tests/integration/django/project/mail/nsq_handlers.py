from gnsqsync.django import nsq_handler


@nsq_handler("sent", "mail", alias="other")
def send(message):
    pass
