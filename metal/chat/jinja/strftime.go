package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

func strftimeNow(r *run, a args) (any, error) {
	p, err := a.strings("strftime_now", "format")
	if err != nil {
		return nil, err
	}
	return r.strftime(r.now, p[0])
}

// strftime is glibc's strftime in the C locale, of a time without a zone, which
// is what the reference gives: %z and %Z are empty. What is no field stays as
// it is.
func (r *texts) strftime(t time.Time, format string) (string, error) {
	if err := r.scan(len(format)); err != nil { // flags of any length
		return "", err
	}
	var b strings.Builder
	for format != "" {
		at := strings.IndexByte(format, '%')
		if at < 0 {
			break
		}
		b.WriteString(format[:at])
		field := format[at:]
		rest := strings.TrimLeft(field[1:], "-_0^#")
		flags := field[1 : len(field)-len(rest)]
		width, rest, err := count(rest)
		if err != nil {
			return "", err
		}
		if rest != "" && (rest[0] == 'E' || rest[0] == 'O') && len(rest) > 1 {
			rest = rest[1:] // another era or other digits, which C has not
		}
		if rest == "" {
			b.WriteString(field)
			format = ""
			break
		}
		text, ok := timeField(t, rest[0])
		if !ok {
			_, n := utf8.DecodeRuneInString(rest)
			rest = rest[n:]
			b.WriteString(field[:len(field)-len(rest)])
		} else {
			rest = rest[1:]
			if err := r.charge(int(max(width, 0))); err != nil {
				return "", err
			}
			b.WriteString(flagged(text, flags, int(width)))
		}
		format = rest
		if err := r.charge(16); err != nil {
			return "", err
		}
	}
	b.WriteString(format)
	return b.String(), r.charge(b.Len())
}

// flagged fills a field as its flags and its width say: - not at all, _ with
// blanks, 0 with zeros; ^ and # are for capitals.
func flagged(s, flags string, width int) string {
	if strings.ContainsAny(flags, "^#") {
		s = strings.ToUpper(s)
	}
	digits := strings.TrimLeft(s, " 0")
	numeric := s != "" && strings.Trim(s, " 0123456789") == ""
	if numeric && digits == "" {
		digits = "0"
	}
	pad := " "
	if numeric && s[0] != ' ' {
		pad = "0"
	}
	for _, c := range flags {
		switch c {
		case '-':
			if numeric {
				return digits
			}
			return s
		case '_':
			pad = " "
		case '0':
			pad = "0"
		}
	}
	n := max(width, len(s))
	if numeric {
		s = digits
	}
	return strings.Repeat(pad, max(n-len(s), 0)) + s
}

func timeField(t time.Time, c byte) (string, bool) {
	const letters = "YymdHIMSpPBbhAaejFTDRrcxX"
	if i := strings.IndexByte(letters, c); i >= 0 {
		return t.Format([len(letters)]string{"2006", "06", "01", "02", "15", "03", "04", "05", "PM", "pm", "January", "Jan", "Jan", "Monday", "Mon", "_2", "002",
			"2006-01-02", "15:04:05", "01/02/06", "15:04", "03:04:05 PM", "Mon Jan _2 15:04:05 2006", "01/02/06", "15:04:05"}[i]), true
	}
	year, week := t.ISOWeek()
	weekday, day := int(t.Weekday()), t.YearDay()-1
	switch c {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'z', 'Z':
		return "", true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 's':
		return strconv.FormatInt(t.Unix(), 10), true
	case 'k':
		return fmt.Sprintf("%2d", t.Hour()), true
	case 'l':
		return fmt.Sprintf("%2d", (t.Hour()+11)%12+1), true
	case 'u':
		return strconv.Itoa((weekday+6)%7 + 1), true
	case 'w':
		return strconv.Itoa(weekday), true
	case 'U':
		return fmt.Sprintf("%02d", (day+7-weekday)/7), true
	case 'W':
		return fmt.Sprintf("%02d", (day+7-(weekday+6)%7)/7), true
	case 'V':
		return fmt.Sprintf("%02d", week), true
	case 'G':
		return fmt.Sprintf("%04d", year), true
	case 'g':
		return fmt.Sprintf("%02d", year%100), true
	case 'C':
		return fmt.Sprintf("%02d", t.Year()/100), true
	}
	return "", false
}
