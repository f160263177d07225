// Package convert converts models in every format and under every plan, for
// check.py, which opens the results with mlx-lm and judges them.
//
// It owns the list of conversions. The test carries the build tag oracle: run.sh
// calls it and then check.py.
package convert
