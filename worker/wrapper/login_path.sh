# Read by login shells in containers, after /etc/profile has set a PATH: they have that which they were started with.
gradient_path=$({ tr '\0' '\n' <"/proc/$$/environ" | sed -n '/^PATH=/{s///p;q;}'; } 2>/dev/null)
PATH=${gradient_path:-$PATH}
unset gradient_path
