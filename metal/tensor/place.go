package tensor

import "fmt"

// CheckPlace refuses rows that Scope.Place cannot replace: those of other shapes, and
// those that are not in ascending order.
func CheckPlace(x []int, rows []int, y []int) error {
	fits := len(rows) > 0 && y[0] == len(rows) && y[1] == x[1]
	before := -1
	for _, r := range rows {
		fits = fits && r > before && r < x[0]
		before = r
	}
	if !fits {
		return &ShapeError{Op: "Place", Detail: fmt.Sprintf("%d rows of %v by %v", len(rows), x, y)}
	}
	return nil
}
