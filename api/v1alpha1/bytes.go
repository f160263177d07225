package v1alpha1

import "fmt"

// FormatBytes formats a byte count for display, with binary units and one
// decimal: "11.5 GiB". Zero is "0".
func FormatBytes(n int64) string {
	if n == 0 {
		return "0"
	}
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	v, i := float64(n), 0
	for v >= 1023.95 && i < len(units)-1 || v <= -1023.95 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
