package modelgatetest

import (
	"math/big"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/shopspring/decimal"
)

// limits is how much a group may use in a period. Usage is blocked from the
// limit on: with 0.00 nothing can be used.
type limits struct {
	spend         decimal.Decimal
	period        string
	policyVersion string // the partner's own, rising; "": it has set none
	version       int    // of the limits, for If-Match
	updatedAt     time.Time
}

// Limits is the same on the wire.
type Limits struct {
	GroupID       string `json:"group_id"`
	SpendLimit    string `json:"spend_limit"`
	Currency      string `json:"currency"`
	Period        string `json:"period"`
	PolicyVersion string `json:"policy_version"` // "0": none was set
	UsageInPeriod string `json:"usage_in_period"`
	Version       int    `json:"version"`
	UpdatedAt     string `json:"updated_at"`
}

// policyForm is a whole number without leading zeros.
var policyForm = regexp.MustCompile(`^(0|[1-9][0-9]{0,29})$`)

func (s *session) limitsOf(g group) Limits {
	l := g.limits
	policy := l.policyVersion
	if policy == "" {
		policy = "0"
	}
	return Limits{
		GroupID: g.id, SpendLimit: printMoney(l.spend, s.options.Currency), Currency: s.options.Currency, Period: l.period, PolicyVersion: policy,
		UsageInPeriod: printMoney(s.usageInPeriod(g), s.options.Currency), Version: l.version, UpdatedAt: stamp(l.updatedAt),
	}
}

func (s *session) limitsReply(g group) (reply, error) {
	return jsonReply(http.StatusOK, s.limitsOf(g)).with("ETag", etag(g.limits)), nil
}

// etag is the version as If-Match wants it.
func etag(l limits) string { return strconv.Quote(strconv.Itoa(l.version)) }

// periodStart is when the period began that a time is in, in UTC. Weeks begin on
// Monday.
func periodStart(period string, at time.Time) time.Time {
	year, month, day := at.UTC().Date()
	switch period {
	case "month":
		day = 1
	case "week":
		day -= (int(at.UTC().Weekday()) + 6) % 7
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// usageInPeriod is what a group has used since its period began.
func (s *session) usageInPeriod(g group) (sum decimal.Decimal) {
	from := periodStart(g.limits.period, s.at)
	for used := range s.usage.all(s.at) {
		if used.group == g.id && !used.createdAt.Before(from) {
			sum = sum.Add(used.cost)
		}
	}
	return sum
}

func (s *session) checkLimit(spend decimal.Decimal) error {
	if spend.GreaterThan(mustMoney(s.options.MaxLimit)) {
		p := problemf(http.StatusUnprocessableEntity, "limit_out_of_range", "a spend_limit is at most %s", s.options.MaxLimit)
		p.param = "spend_limit"
		return p
	}
	return nil
}

func (s *session) checkCurrency(currency string) error {
	if currency != s.options.Currency {
		p := problemf(http.StatusUnprocessableEntity, "currency_mismatch", "the wallet's currency is %s", s.options.Currency)
		p.param = "currency"
		return p
	}
	return nil
}

// getLimits is GET /groups/{gid}/limits.
func getLimits(c *call) (execution, error) {
	if err := c.noQuery(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		g, err := s.group()
		if err != nil {
			return reply{}, err
		}
		return s.limitsReply(g)
	}, nil
}

// changeLimits is PATCH /groups/{gid}/limits. A policy version that is not newer
// than the one that holds is stale.
func changeLimits(c *call) (execution, error) {
	f := c.fields()
	spend, period, currency := f.money("spend_limit", false), f.choice("period", periods...), f.form("currency", currencyForm, "USD")
	policy := f.form("policy_version", policyForm, "4")
	if err := f.done(); err != nil {
		return nil, err
	}
	match := c.r.Header.Get("If-Match")
	return func(s *session) (reply, error) {
		g, err := s.liveGroup()
		if err != nil {
			return reply{}, err
		}
		if err := s.checkLimits(g.limits, spend, currency, policy, match); err != nil {
			return reply{}, err
		}
		g.limits = limits{spend, period, policy, g.limits.version + 1, s.now}
		g = s.putGroup(g)
		s.changed("limit.update", "group", g.id, map[string]string{"spend_limit": printMoney(spend, currency), "period": period, "policy_version": policy})
		return s.limitsReply(g)
	}, nil
}

func (s *session) checkLimits(now limits, spend decimal.Decimal, currency, policy, match string) error {
	if match != "" && match != "*" && match != etag(now) {
		p := problemf(http.StatusPreconditionFailed, "version_mismatch", "the limits have version %d", now.version)
		p.param = "If-Match"
		return p
	}
	if err := s.checkCurrency(currency); err != nil {
		return err
	}
	if err := s.checkLimit(spend); err != nil {
		return err
	}
	if now.policyVersion != "" && !newer(policy, now.policyVersion) {
		p := problemf(http.StatusConflict, "policy_version_stale", "policy version %s holds", now.policyVersion)
		p.param = "policy_version"
		return p
	}
	return nil
}

// newer compares whole numbers of any length.
func newer(a, b string) bool {
	left, _ := new(big.Int).SetString(a, 10)
	right, _ := new(big.Int).SetString(b, 10)
	return left.Cmp(right) > 0
}
