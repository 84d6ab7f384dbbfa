"""The pages of nsqadmin, in HTML that works without scripts. Needs Jinja."""
