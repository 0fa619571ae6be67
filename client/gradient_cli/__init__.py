TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
