#include "services/controller/ui/assets.h"

namespace sluice::controller {

// sluice_embed() makes these from the files.
namespace page {
extern const absl::string_view index_html, app_js, charts_js, elements_js, icon_svg, style_css;
}  // namespace page

const Asset* FindAsset(absl::string_view path) {
  static const Asset kAssets[] = {
      {"/ui", "text/html; charset=utf-8", page::index_html},
      {"/ui/", "text/html; charset=utf-8", page::index_html},
      {"/ui/app.js", "text/javascript; charset=utf-8", page::app_js},
      {"/ui/charts.js", "text/javascript; charset=utf-8", page::charts_js},
      {"/ui/elements.js", "text/javascript; charset=utf-8", page::elements_js},
      {"/ui/icon.svg", "image/svg+xml", page::icon_svg},
      {"/ui/style.css", "text/css; charset=utf-8", page::style_css},
  };
  for (const Asset& asset : kAssets) {
    if (asset.path == path) return &asset;
  }
  return nullptr;
}

}  // namespace sluice::controller
