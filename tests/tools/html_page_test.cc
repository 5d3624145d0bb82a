// The page of `ckpt-inspect report`.
#include "inspect/page/report_json.h"

#include <boost/test/unit_test.hpp>
#include <string>

using tools::inspect::report_html;

BOOST_AUTO_TEST_SUITE(html_page)

BOOST_AUTO_TEST_CASE(no_text_ends_the_element_it_stands_in) {
  const std::string page = report_html("{\"a\": \"</script><!--&\xE2\x80\xA8\xE2\x80\xA9\"}");
  BOOST_TEST(page.find("</script><!--") == page.npos);
  BOOST_TEST(page.find("\\u003c/script\\u003e\\u003c!--\\u0026\\u2028\\u2029") != page.npos);
  BOOST_TEST(page.find("/*DATA*/") == page.npos);
}

// What a page may do is nothing but draw.
BOOST_AUTO_TEST_CASE(the_page_forbids_every_request) {
  const std::string page = report_html("{}");
  BOOST_TEST(page.find("default-src 'none'") != page.npos);
  BOOST_TEST(page.find("http://") == page.find("http://www.w3.org/2000/svg"));
  BOOST_TEST(page.find("https://") == page.npos);
  BOOST_TEST(page.find("innerHTML") == page.npos);
}

BOOST_AUTO_TEST_SUITE_END()
