import sys

from gradient_cli.main import main

sys.exit(main())
