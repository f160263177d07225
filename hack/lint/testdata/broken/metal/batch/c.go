package batch

import "C"
