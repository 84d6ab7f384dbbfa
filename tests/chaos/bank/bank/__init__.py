"""Money moves from account to account: taken here, given by a message, confirmed by another one."""
