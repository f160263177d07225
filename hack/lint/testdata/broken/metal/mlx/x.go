package mlx

import "C"
