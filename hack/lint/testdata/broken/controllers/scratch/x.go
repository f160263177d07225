package scratch

import (
	_ "fmt"
)
