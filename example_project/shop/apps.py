from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "example_project.shop"
    label = "shop"
    verbose_name = "Tea and coffee shop"
    default_auto_field = "django.db.models.BigAutoField"
