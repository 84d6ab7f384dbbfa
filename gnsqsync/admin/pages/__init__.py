"""The pages of nsqadmin, as HTML that works without a script. Needs Jinja."""
