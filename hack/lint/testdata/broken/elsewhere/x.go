package elsewhere

import (
	_ "fmt"
)
