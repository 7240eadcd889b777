package stripe

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"jpintel/billing/money"
	"jpintel/billing/strictjson"
)

// members takes members out of an object. The first that is not as it should be
// is the error, by its path; the others are then zero. Errors say what is wanted
// and never what was there.
type members struct {
	object strictjson.Object
	path   string
	err    *error
}

// into is the members of an object inside.
func (m members) into(name string) members {
	o, ok := m.object[name].(strictjson.Object)
	if !ok {
		m.fail(name, "an object")
	}
	return members{o, m.path + name + ".", m.err}
}

func (m members) fail(name, want string) {
	if *m.err == nil {
		*m.err = fmt.Errorf("%s%s: want %s", m.path, name, want)
	}
}

// text is a string that has to be there.
func (m members) text(name string) string {
	text := m.optional(name)
	if text == "" {
		m.fail(name, "a string")
	}
	return text
}

// optional is a string, null or missing.
func (m members) optional(name string) string {
	text, ok := m.object[name].(string)
	if !ok && m.object[name] != nil {
		m.fail(name, "a string or null")
	}
	return text
}

// is holds that a member has one value and no other.
func (m members) is(name, want string) {
	if m.text(name) != want {
		m.fail(name, want)
	}
}

func (m members) truth(name string) bool {
	value, ok := m.object[name].(bool)
	if !ok {
		m.fail(name, "true or false")
	}
	return value
}

// idForm leaves out what would need escaping in a path.
var idForm = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}$`)

// id is the id of the object itself.
func (m members) id() string {
	id := m.text("id")
	if *m.err == nil && !idForm.MatchString(id) {
		m.fail("id", "at most 255 letters, digits or _ . -")
	}
	return id
}

// ref is another object: its id, or all of it where it is expanded; "": null or
// missing.
func (m members) ref(name string) string {
	switch value := m.object[name].(type) {
	case nil:
		return ""
	case string:
		if !idForm.MatchString(value) {
			m.fail(name, "an id")
		}
		return value
	case strictjson.Object:
		return m.into(name).id()
	}
	m.fail(name, "an id, an object or null")
	return ""
}

// wholeForm has neither a sign, nor a point, nor an exponent.
var wholeForm = regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`)

// whole is a number from 0, without a fraction.
func (m members) whole(name string) int64 {
	number, ok := m.object[name].(json.Number)
	if !ok || !wholeForm.MatchString(number.String()) {
		m.fail(name, "a whole number from 0, in minor units where it is money")
		return 0
	}
	n, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil {
		m.fail(name, "a smaller number") // unreachable: 18 digits fit
	}
	return n
}

// currency is a code as Stripe writes it, in small letters, as ISO 4217 does.
func (m members) currency(name string) string {
	code := m.text(name)
	if _, err := money.ParseCurrency(strings.ToUpper(code)); err != nil || strings.ToLower(code) != code {
		m.fail(name, "three small letters like usd")
	}
	return strings.ToUpper(code)
}

// null reports whether a member is null or missing.
func (m members) null(name string) bool { return m.object[name] == nil }

// oneOf is a string that has to be one of a few.
func (m members) oneOf(name string, all ...string) string {
	text := m.text(name)
	if !slices.Contains(all, text) {
		m.fail(name, "one of "+strings.Join(all, ", "))
	}
	return text
}
